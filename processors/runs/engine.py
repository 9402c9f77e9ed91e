"""Interface of engines, which decide the runs of one kind.

Owners, snapshots, restores, the test harness and the simulation know only runs; their engines are
passed to them. A run's `kind` names its engine for as long as its instance exists.

An engine is pure: no clock, no randomness, no I/O. It decides events; the caller appends and
applies them, one by one and in order, before the next decision.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from headwater.processors.runs.decisions import Decision, Facts
from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.requests import Request
from headwater.processors.runs.state import Entry, Run
from headwater.schemas.errors import NewerSchema
from headwater.schemas.history import Failure, HistoryAppended, LogEvent, RunCommand, RunEvent

R = TypeVar("R", bound=Run)


class Engine(Protocol[R]):
    """Decides the runs of one kind."""

    @property
    def kind(self) -> str:
        """Name of the engine in histories and snapshots."""

    # -- deciding

    def decide_command(self, run: R | None, command: RunCommand, facts: Facts) -> Decision:
        """Decide a command; without a run it creates an instance."""

    def decide(self, run: R, request: Request, now_ms: int) -> Decision:
        """Decide a request of code, a step, a host or the clock; a late one is rejected."""

    def fail_run(self, run: R, failure: Failure, *, with_children: bool = True) -> list[RunEvent]:
        """Fail a run that cannot continue.

        Args:
            run: The run.
            failure: Why it fails.
            with_children: Whether to end its children; False if that is too large for a record.
        """

    def event_location(self, run: R, decided: Sequence[RunEvent], event: RunEvent) -> str:
        """Return where in its run an event belongs, for its author; empty for the whole run."""

    @property
    def size_advice(self) -> str:
        """What an author can do if one decision is too large."""

    # -- applying

    def begin(self, before: R | None, record: HistoryAppended) -> R:
        """Return the state of a new run after the RunStarted that its record begins with.

        Args:
            before: The previous run; parts of it may be kept.
            record: The record.
        """

    def apply(self, run: R, event: LogEvent, at_ms: int) -> object:
        """Apply an event other than RunStarted, in place.

        Raises:
            InvariantViolation: The event does not fit the state.
        """

    # -- effects

    def message_for_host(
        self, run: R, event: RunEvent, activation: int, sequence: int
    ) -> HostMessage | None:
        """Return what the host has to know about an event that is applied and durable, or None.

        Args:
            run: The run after the event.
            event: The event.
            activation: Number of the activation.
            sequence: Sequence of the event.
        """

    def activate(self, run: R, activation: int) -> HostMessage | None:
        """Return the message that activates a run in a host; None if the run has no code.

        The message shares nothing that later events change.
        """

    def is_runnable(self, run: R, now_ms: int) -> bool:
        """Return whether the code of a run can continue now."""

    def attempts_due(self, run: R, activation: int, now_ms: int) -> Mapping[str, HostMessage]:
        """Return the attempts that a host has to start now, by entry key.

        Some of them may be running already.
        """

    def next_wake_ms(self, run: R, after_ms: int = 0) -> int | None:
        """Return when, after `after_ms`, a timer next changes the run, or None."""

    def expected_attempt(self, run: R, key: str) -> int | None:
        """Return the number of the attempt of a step whose result is still expected, or None."""

    # -- stored state

    @property
    def format(self) -> int:
        """Version of the state encoding."""

    def encode(self, run: R) -> bytes:
        """Encode a state."""

    def decode(self, state: bytes) -> R:
        """Decode a state of this format."""

    def drop_finished(self, run: R) -> None:
        """Drop what neither a restart nor a retry needs from a run that has ended."""

    def steps(self, run: R) -> list[tuple[str, Entry]]:
        """Return the entries for display, in the order in which they were first reached."""


#: Engines by kind.
Engines: TypeAlias = Mapping[str, Engine[Any]]


def engine_of(engines: Engines, kind: str) -> Engine[Any]:
    """Return the engine of a kind of runs.

    Raises:
        NewerSchema: There is no engine of this kind.
    """
    engine = engines.get(kind)
    if engine is None:
        known = ", ".join(sorted(engines))
        raise NewerSchema(
            f"expected runs of one of the kinds {known}, found one of kind {kind!r}, which a newer "
            "release started; start that release here"
        )
    return engine
