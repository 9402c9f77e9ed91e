"""What a run needs of the host that runs it: attempts of steps, a way to the owner, a clock."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from headwater.processors.replay.commands import CodeCommand
from headwater.processors.runs.requests import Reached, RetryPolicy
from headwater.streams.authoring.value_types import ValueType


class Call:
    """A step that is to be called, and called again when it fails.

    Shape:  `started` while an attempt is under way; `returned` when the result of one is on its
            way to the log and nothing can keep it from there.
    """

    __slots__ = (
        "attempt",
        "callback",
        "declared",
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
        declared: ValueType | None = None,
    ) -> None:
        self.reached = reached
        self.callback = callback
        self.policy = policy
        self.wants_tx = wants_tx
        self.rollback = rollback
        #: The type of its result, where JSON has no such type.
        self.declared = declared
        self.attempt = 0
        self.started = False
        self.returned = False


class Handler(NamedTuple):
    """A rollback handler.

    Attributes:
        function: Takes the result of its step.
        timeout_ms: How long an attempt may take, in milliseconds; 0 for any time.
        declared: The type of the result of its step, where JSON has no such type.
    """

    function: Callable[[Any], object]
    timeout_ms: int
    declared: ValueType | None = None


class HostPort(Protocol):
    """The host of one run."""

    def send(self, command: CodeCommand) -> None:
        """Sends a command to the owner."""

    def call(self, call: Call) -> None:
        """Begins an attempt of a step, outside the workflow's loop."""

    def call_handler(
        self,
        key: str,
        attempt: int,
        handler: Handler,
        output: Any,  # noqa: ANN401, any JSON value
    ) -> None:
        """Begins an attempt of a rollback handler, outside the workflow's loop."""

    def cancel(self, key: str | None = None) -> None:
        """Cancels the attempt of a key, or all."""

    def is_busy(self) -> bool:
        """Whether attempts are under way."""

    def yield_back(self) -> bool:
        """Hands the run back, if an attempt of it could not begin; says whether."""

    def now_ms(self) -> int:
        """The host's clock."""
