"""What authors pass to entries and get from them, to and from plain numbers and text."""

import inspect
import math
import types
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum
from hashlib import blake2b
from typing import Any

from processors.replay.errors import RollbackError, StepFailedError, UniqueConstraintError
from processors.replay.state import Entry
from processors.runs.durations import Duration, milliseconds
from processors.runs.limits import (
    EVENT_TYPE_MAX,
    MAILBOX_MAX,
    STEP_NAME_MAX,
    WAIT_DEFAULT_MS,
    WAIT_MAX_MS,
    WAIT_MIN_MS,
    name_fault,
)
from schemas.history import Failure
from streams.code_host.definition import ReceivedEvent
from streams.code_host.protocol import Activate
from streams.code_host.values import check_sound


def check_name(name: object) -> None:
    """Sees that the name of an entry keeps the rules.

    Errors: ValueError, TypeError, UnserialisableError.
    """
    if isinstance(name, str) and 0 < len(name) <= STEP_NAME_MAX:
        if type(name) is str and name.isascii():
            return
        check_sound("the name of an entry", name)
        if type(name) is str or isinstance(name, Enum):
            return
        raise TypeError(
            f"expected the name of an entry to be a plain str, found {type(name).__name__}: "
            f"pass str({str(name)!r})"
        )
    found = f"{len(name)} characters: {name[:40]!r}" if isinstance(name, str) else repr(name)
    raise ValueError(
        f"expected the name of an entry to be 1 to {STEP_NAME_MAX} characters, found {found}"
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


def wants_tx(callback: Callable[..., Any]) -> bool:
    """Whether a callback has exactly one required positional parameter."""
    if isinstance(callback, types.FunctionType) and not callback.__dict__:
        # Decorators leave traces there. What `inspect` would find, at a hundredth of its time.
        return callback.__code__.co_argcount - len(callback.__defaults__ or ()) == 1
    try:
        parameters = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters) == 1


def step_error(name: str, entry: Entry) -> Exception:
    """The error that a failed step raises into the workflow."""
    failure = entry.failure or Failure("Error", "")
    if failure.name == "RollbackError":
        return RollbackError(failure.message)
    if failure.name == "UniqueConstraintError":
        return UniqueConstraintError(name, entry.attempts, failure)
    return StepFailedError(name, entry.attempts, failure)


def wait_ms_of(
    name: str, types_: tuple[str, ...], limit: int | None, timeout: Duration | None
) -> int:
    """The timeout of a wait in milliseconds.

    Errors: ValueError for a timeout, a type or a limit out of range.
    """
    for each in types_:
        fault = name_fault("an event type", each, EVENT_TYPE_MAX)
        if fault:
            raise ValueError(fault)
    if not types_ or (
        limit is not None and (type(limit) is not int or not 1 <= limit <= MAILBOX_MAX)
    ):
        raise ValueError(
            f'expected "{name}" to have a type and a whole number from 1 to {MAILBOX_MAX:,} as its '
            f"limit, found {types_} and {limit!r}"
        )
    wait_ms = WAIT_DEFAULT_MS if timeout is None else milliseconds(timeout)
    if not WAIT_MIN_MS <= wait_ms <= WAIT_MAX_MS:
        raise ValueError(
            f'expected the timeout of "{name}" to be 1 second to 365 days, found {timeout!r}'
        )
    return wait_ms


def event_of(found: dict[str, Any]) -> ReceivedEvent:
    """An event as its record has it."""
    return ReceivedEvent(found["type"], found["payload"], aware(found["timestamp"]))


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


def child_id_of(begin: Activate, key: str) -> str:
    """The id of a child that its author did not name: the same on every replay."""
    place = f"{begin.workflow}/{begin.instance_id}/{key}"
    return f"child_{blake2b(place.encode(), digest_size=12).hexdigest()}"
