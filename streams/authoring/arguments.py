"""What authors pass to entries and get from them, to and from plain numbers and text."""

import inspect
import math
import types
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from enum import Enum
from hashlib import blake2b
from typing import Any, cast

from headwater.processors.replay.errors import RollbackError, StepFailedError, UniqueConstraintError
from headwater.processors.replay.state import Entry
from headwater.processors.runs.durations import Duration, milliseconds_of
from headwater.processors.runs.limits import (
    DAY_MS,
    MAILBOX_MAX,
    WAIT_DEFAULT_MS,
    WAIT_MAX_MS,
    WAIT_MIN_MS,
    control_character,
    name_problem,
)
from headwater.processors.runs.requests import RetryPolicy
from headwater.schemas.failures import ROLLBACK, UNIQUE_CONSTRAINT
from headwater.schemas.history import Failure, Limits
from headwater.streams.authoring.read_only import frozen
from headwater.streams.authoring.values import check_sound
from headwater.streams.authoring.workflow_values import ReceivedEvent, Retry


def check_name(name: object, what: str = "the name of an entry") -> None:
    """Check that a name follows the rules, whatever was recorded.

    Args:
        name: The name.
        what: What it is the name of, for the message of an error.

    Raises:
        ValueError: It is empty, no text, or has control characters.
        TypeError: It is neither a plain str nor an Enum.
        UnserialisableError: UTF-8 cannot hold it.
    """
    if type(name) is str and name and name.isascii() and name.isprintable():
        return
    if not isinstance(name, str) or not name:
        raise ValueError(f"expected {what} to be text, and not empty, found {name!r}")
    check_sound(what, name)
    if type(name) is not str and not isinstance(name, Enum):
        raise TypeError(
            f"expected {what} to be a plain str, found {type(name).__name__}: "
            f"pass str({str(name)!r})"
        )
    control = control_character(name)
    if control is not None:
        raise ValueError(
            f"expected {what} to have no control characters, found {control!r} in {name[:80]!r}"
        )


def check_length(name: str, limits: Limits, what: str = "the name of an entry") -> None:
    """Check that the name of a new entry is not too long.

    Raises:
        ValueError: It is too long.
    """
    longest = limits.max_step_name
    if len(name) > longest:
        raise ValueError(
            f"expected {what} to be 1 to {longest} characters (max_step_name), found "
            f"{len(name)} characters: {name[:40]!r}"
        )


def check_callable(name: str, callback: object) -> None:
    """Sees that a step is given a function, and not what calling it gives.

    Errors: TypeError.
    """
    if callable(callback):
        return
    if inspect.iscoroutine(callback):
        callback.close()
    raise TypeError(
        f'expected the step "{name}" to be given a function, found {type(callback).__name__}: '
        "pass the function without calling it, or `lambda: function(argument)`"
    )


def misfit_of(function: Callable[..., Any], arguments: int) -> str | None:
    """Why a function cannot be called with so many arguments, if it cannot."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as why:
        return str(why)
    except ValueError:
        pass  # It does not say what it takes, as some functions that are built in.
    return None


def check_rollback(name: str, handler: object) -> None:
    """Sees that a rollback is a function of the step's result.

    Errors: TypeError.
    """
    # A step calls it so. What `inspect` would find of most, at a hundredth of its time.
    code = _plain_code(handler)
    if code is not None and code.co_argcount == 1:
        return
    if callable(handler):
        misfit = misfit_of(handler, 1)
        if misfit is not None:
            raise TypeError(
                f'expected the rollback of the step "{name}" to take one argument, the result of '
                f"the step, found: {misfit}"
            )
        return
    if inspect.iscoroutine(handler):
        handler.close()
    raise TypeError(
        f'expected the rollback of the step "{name}" to be a function of the result of the step, '
        f"found {handler!r:.80}"
    )


def wants_tx(name: str, callback: Callable[..., Any]) -> bool:
    """Whether a callback has exactly one required positional parameter.

    Errors: TypeError for more, which nothing would be given for.
    """
    code = _plain_code(callback)
    if code is None:
        required, named = _required(callback)
    elif not code.co_argcount:
        return False
    else:
        # What `inspect` would find, at a hundredth of its time.
        required, named = code.co_argcount - len(callback.__defaults__ or ()), ""
    if required > 1 or named:
        raise TypeError(
            f'expected the function of the step "{name}" to take no argument or one, the '
            f"transaction, found that it needs {required}{named}: bind them, as `lambda: "
            "function(argument)` does"
        )
    return required == 1


def _plain_code(function: object) -> types.CodeType | None:
    """The code of a function, if it says all that the function needs. Decorators leave traces."""
    if not isinstance(function, types.FunctionType) or function.__dict__:
        return None
    code = function.__code__  # Once: Python reports each look at it to audit hooks.
    return None if code.co_kwonlyargcount else code


def _required(function: Callable[..., Any]) -> tuple[int, str]:
    """How many arguments a function has to be given, and which ones by name, for a message."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0, ""
    needed = [each for each in parameters if each.default is each.empty]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [each.name for each in needed if each.kind is each.KEYWORD_ONLY]
    count = sum(each.kind in positional for each in needed)
    return count, f", and {', '.join(named)} by name" if named else ""


def retries_of(name: str, retries: object) -> RetryPolicy:
    """Return how often a step is tried again.

    Raises:
        TypeError: The value is no Retry.
    """
    if not isinstance(retries, Retry):
        raise TypeError(
            f'expected the retries of the step "{name}" to be a Retry, found {retries!r:.80}: '
            "write retries=Retry(limit=3)"
        )
    return retries.policy()


def step_error(name: str, entry: Entry) -> Exception:
    """The error that a failed step raises into the workflow."""
    failure = entry.failure or Failure("Error", "")
    if failure.name == ROLLBACK:
        return RollbackError(failure.message)
    if failure.name == UNIQUE_CONSTRAINT:
        return UniqueConstraintError(name, entry.attempts, failure)
    return StepFailedError(name, entry.attempts, failure)


def types_of(name: str, given: object, limits: Limits) -> tuple[str, ...]:
    """The types that a wait takes.

    Errors: TypeError, ValueError.
    """
    # A set would have another order in every process, and the order is recorded.
    if not isinstance(given, list | tuple):
        raise TypeError(
            f'expected the types of the wait "{name}" to be a list, as types=["approval"], '
            f"found {given!r:.120}"
        )
    found = tuple(given)
    for each in found:
        fault = name_problem("an event type", each, limits.max_event_type, "max_event_type")
        if fault:
            raise ValueError(f'{fault}, in the wait "{name}"')
    return found


def wait_ms_of(
    name: str, types_: tuple[str, ...], limit: int | None, timeout: Duration | None
) -> int:
    """The timeout of a wait in milliseconds.

    Errors: ValueError for a timeout or a limit out of range, and for no types.
    """
    if not types_ or (
        limit is not None and (type(limit) is not int or not 1 <= limit <= MAILBOX_MAX)
    ):
        raise ValueError(
            f'expected "{name}" to have a type and a whole number from 1 to {MAILBOX_MAX:,} as its '
            f"limit, found {types_} and {limit!r}"
        )
    if timeout is None:
        return WAIT_DEFAULT_MS
    wait_ms = milliseconds_of(f'the timeout of "{name}"', timeout)
    if not WAIT_MIN_MS <= wait_ms <= WAIT_MAX_MS:
        raise ValueError(
            f'expected the timeout of "{name}" to be 1 second to 365 days, found {timeout!r}'
        )
    return wait_ms


def sleep_of(
    name: str, length: Duration | datetime, now_ms: int, days: int, *, until: bool
) -> tuple[int | None, int | None]:
    """How long a sleep lasts, or until when it does, in milliseconds; it may last so many days.

    Errors: ValueError.
    """
    what: Any = length
    if until:
        try:
            until_ms = moment_ms(what)
        except ValueError as why:
            raise ValueError(f'{why}, as the end of the sleep "{name}"') from None
        found: tuple[int | None, int | None] = (None, until_ms)
        length_ms = until_ms - now_ms
    else:
        length_ms = milliseconds_of(f'the length of the sleep "{name}"', what)
        found = (length_ms, None)
    if length_ms > days * DAY_MS:
        raise ValueError(
            f'expected the sleep "{name}" to last at most {days} days (max_sleep_days), found '
            f"{length!r}"
        )
    return found


def awaited(what: str, function: Any) -> Any:  # noqa: ANN401
    """An author's function that has to be async, as one that says so if it is not.

    Errors: TypeError, from the call.
    """

    def call(*arguments: object) -> Awaitable[Any]:
        try:
            found = function(*arguments) if callable(function) else function
        except TypeError:
            misfit = misfit_of(function, len(arguments))
            if misfit is None:
                raise
            taken = ("a step", "a step and the state")[len(arguments) - 1]
            raise TypeError(f"expected {what} to take {taken}, found: {misfit}") from None
        if hasattr(type(found), "__await__"):
            return cast("Awaitable[Any]", found)
        raise TypeError(
            f"expected {what} to be an async function, found {found!r:.80} where it was called: "
            "write `async def`"
        )

    return call


def event_of(found: dict[str, Any]) -> ReceivedEvent:
    """An event as its record has it, read-only."""
    return ReceivedEvent(found["type"], frozen(found["payload"]), aware(found["timestamp"]))


def aware(ms: int) -> datetime:
    """A time as an aware datetime."""
    # Not fromtimestamp(ms / 1000), whose float loses the last millisecond now and then.
    return datetime.fromtimestamp(ms // 1_000, UTC) + timedelta(milliseconds=ms % 1_000)


def moment_ms(moment: datetime | float) -> int:
    """A moment in Unix milliseconds.

    Shape:  what was before 1970 is over as well, and is 0.
    Errors: ValueError for a datetime without a time zone, and for what is no time.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(
                f"expected a datetime with a time zone, found {moment!r}: "
                "pass tzinfo, for example datetime.UTC"
            )
        return max(0, round(moment.timestamp() * 1_000))
    if type(moment) not in (int, float) or not -math.inf < moment < math.inf:
        raise ValueError(f"expected a datetime or Unix milliseconds, found {moment!r}")
    return max(0, round(moment))


def child_id_of(workflow: str, instance_id: str, key: str) -> str:
    """The id of a child that its author did not name: the same on every replay."""
    place = f"{workflow}/{instance_id}/{key}"
    return f"child_{blake2b(place.encode(), digest_size=12).hexdigest()}"
