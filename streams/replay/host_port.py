"""What a run in hand needs of the world around it: attempts, the owner's ear, a clock."""

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from headwater.processors.replay.commands import CodeCommand, Reached, RetryPolicy
from headwater.processors.replay.errors import (
    NonRetryableError,
    StepFailedError,
    TooManyEntriesError,
)
from headwater.processors.runs.limits import FAILURE_NAME_MAX, bounded
from headwater.schemas.history import Failure
from headwater.streams.authoring.values import encode, sound

if TYPE_CHECKING:
    from headwater.streams.replay.activation import Activation

#: Characters of a traceback that are kept: the end says where it was.
_TRACE_MAX: Final = 4_000


class Call:
    """A step that is to be called, and called again when it fails.

    Shape:  it has `returned` when its result is on its way, and nothing keeps it from the log.
    """

    __slots__ = (
        "attempt",
        "callback",
        "policy",
        "reached",
        "returned",
        "rollback",
        "started",
        "wants_tx",
    )

    def __init__(
        self,
        reached: Reached,
        callback: Callable[..., Any],
        policy: RetryPolicy,
        *,
        wants_tx: bool,
        rollback: bool,
    ) -> None:
        self.reached = reached
        self.callback = callback
        self.policy = policy
        self.wants_tx = wants_tx
        self.rollback = rollback
        self.attempt = 0
        self.started = False
        self.returned = False


class Outside(Protocol):
    """What an activation needs of its host."""

    def say(self, activation: "Activation", asked: CodeCommand) -> None:
        """Tells the owner."""

    def call(self, activation: "Activation", call: Call) -> None:
        """Runs an attempt of a step outside the workflow's loop."""

    def call_handler(
        self,
        activation: "Activation",
        key: str,
        handler: Callable[[Any], Any],
        output: Any,  # noqa: ANN401, any JSON value
    ) -> None:
        """Runs a rollback handler outside the workflow's loop."""

    def drop(self, activation: "Activation", key: str | None) -> None:
        """Cancels what runs for a key, or for all keys."""

    def running(self, activation: "Activation") -> int:
        """How many attempts and handlers are under way."""

    def now_ms(self) -> int:
        """The host's clock."""

    def workflows(self) -> frozenset[str]:
        """The names of the workflows that this host knows."""


def failure_of(error: BaseException) -> Failure:
    """An exception as data; of a failed step, the exception that made it fail.

    Its message is cut where it is too long: several of them may have to fit into one record.
    """
    if isinstance(error, StepFailedError):
        return error.error
    # Not of any error that has a name: of an AttributeError it is that of the attribute.
    if isinstance(error, NonRetryableError | TooManyEntriesError):
        name = str(error.name)
    else:
        name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001, an author's __str__ may do anything
        text = "(its text could not be made)"
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    trace = sound("".join(lines)[-_TRACE_MAX:])
    return Failure(
        bounded(sound(name), FAILURE_NAME_MAX), bounded(sound(text)), encode(trace, "a traceback")
    )
