"""The host of a run as the run uses it: attempts, commands, and a clock."""

import contextvars
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from headwater.processors.code.host_messages import CodeCommand
from headwater.processors.runs.decisions import Reached, RetryPolicy
from headwater.processors.trace_context import (
    CURRENT,
    TraceContext,
    attempt_context,
    context_of,
)
from headwater.streams.authoring.value_types import ValueType


class CurrentAttempt(msgspec.Struct, frozen=True, gc=False):
    """The attempt that is running."""

    key: str
    number: int
    #: For example `order/order-1`.
    instance: str = ""
    run: int = 0
    #: Trace context of the run, as text.
    trace: str = ""

    def context(self) -> TraceContext | None:
        """Return the trace context of the attempt, if its run has one."""
        run = context_of(self.trace)
        return None if run is None else attempt_context(run, self.key, self.number)

    def enter(self) -> None:
        """Make this the attempt that the running code belongs to."""
        ATTEMPT.set(self)
        CURRENT.set(self.context)


#: The attempt that the running code belongs to. Log lines name it.
ATTEMPT: contextvars.ContextVar[CurrentAttempt | None] = contextvars.ContextVar(
    "headwater_attempt", default=None
)


# -- port


class Call:
    """A step that is called, and called again when it fails.

    Attributes:
        started: Whether an attempt is running.
        returned: Whether the result of an attempt is being recorded and can no longer be dropped.
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
        #: Type of its result, if JSON has no such type.
        self.declared = declared
        self.attempt = 0
        self.started = False
        self.returned = False


class Handler(NamedTuple):
    """A rollback handler.

    Attributes:
        function: Takes the result of its step.
        timeout_ms: Longest duration of an attempt, in milliseconds; 0 if unlimited.
        declared: Type of the result of its step, if JSON has no such type.
    """

    function: Callable[[Any], object]
    timeout_ms: int
    declared: ValueType | None = None


class HostPort(Protocol):
    """The host of one run."""

    def send(self, command: CodeCommand) -> None:
        """Send a command to the owner."""

    def call(self, call: Call) -> None:
        """Start an attempt of a step, outside the workflow's loop."""

    def call_handler(
        self,
        key: str,
        attempt: int,
        handler: Handler,
        output: Any,  # noqa: ANN401, any JSON value
    ) -> None:
        """Start an attempt of a rollback handler, outside the workflow's loop."""

    def cancel(self, key: str | None = None) -> None:
        """Cancel the attempt of a key, or all attempts."""

    def is_busy(self) -> bool:
        """Whether attempts are running."""

    def yield_back(self) -> bool:
        """Yield the run back if one of its attempts could not start. Return whether it did."""

    def now_ms(self) -> int:
        """Return the host's time in Unix milliseconds."""
