"""Interface of engines, which decide the runs of one kind, and the fold of a history by them.

Owners, snapshots, restores, the test harness and the simulation know only runs; their engines are
passed to them. A run's `kind` names its engine for as long as its instance exists.

An engine is pure: no clock, no randomness, no I/O. It decides events; the caller appends and
applies them, one by one and in order, before the next decision.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar, get_args

from headwater.processors.runs.decisions import Decision, Facts, Request
from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.state import Run
from headwater.schemas.errors import InvariantViolation, NewerSchema
from headwater.schemas.history import (
    Failure,
    HistoryAppended,
    LogEvent,
    PostsSent,
    RunCommand,
    RunEvent,
    RunStarted,
    StepCompleted,
)

R = TypeVar("R", bound=Run)
R_contra = TypeVar("R_contra", bound=Run, contravariant=True)


class ShortSteps(Protocol[R_contra]):
    """A faster way to do what an engine does when the first attempt of a step returns."""

    def decide(self, run: R_contra, request: Request) -> StepCompleted | None:
        """Return what `Engine.decide` returns, as a single event; None if it has to decide."""

    def apply(self, run: R_contra, event: StepCompleted, at_ms: int) -> None:
        """Apply an event that `decide` returned, as `Engine.apply` does."""


class Engine(Protocol[R]):
    """Decides the runs of one kind."""

    @property
    def kind(self) -> str:
        """Name of the engine in histories and snapshots."""

    @property
    def short_steps(self) -> ShortSteps[R] | None:
        """A faster way for the most frequent request; None if there is none."""

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
        """Return the number of the attempt of a step with a pending result, or None."""

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


# -- folding

#: Events of runs; claims and rejections are not among them.
_RUN_EVENTS: Final = frozenset(get_args(RunEvent))


def fold(engines: Engines, run: Any, record: HistoryAppended) -> Any:  # noqa: ANN401, the engine's
    """Apply a record that counts (see `processors.runs.claims`).

    Args:
        engines: The engines by kind.
        run: State of the record's instance, or None.
        record: The record.

    Returns:
        The state after the record.

    Raises:
        InvariantViolation: There is a gap in the runs or in the sequence, or an event does not fit
            the state.
    """
    expected, engine = record.sequence, None
    for event in record.events:
        kind = type(event)
        if isinstance(event, RunStarted):
            number = 0 if run is None else run.run_number + 1
            _expect(record, "run", number, record.run_number)
            _expect(record, "sequence", 0, record.sequence)
            engine = engine_of(engines, event.kind)
            run = engine.begin(run, record)
            expected = 1
        elif kind in _RUN_EVENTS:
            if run is None:
                raise InvariantViolation(
                    f"expected RunStarted first, found {type(event).__name__} in the history of "
                    f"{record.workflow}/{record.instance_id}"
                )
            if kind is not PostsSent:
                _expect(record, "sequence", run.sequence, expected)
                expected += 1
            engine = engine or engine_of(engines, run.kind)
            engine.apply(run, event, record.at_ms)
    return run


def runs(engines: Engines, records: Iterable[HistoryAppended]) -> dict[int, Run]:
    """Return the runs of one instance, by number.

    Args:
        engines: The engines by kind.
        records: Records of the instance that count, in order.
    """
    states: dict[int, Run] = {}
    latest: Run | None = None
    for record in records:
        number = record.run_number
        if number in states or isinstance(record.events[0], RunStarted):
            latest = states[number] = fold(engines, states.get(number, latest), record)
    return states


def _expect(record: HistoryAppended, what: str, expected: int, actual: int) -> None:
    if actual != expected:
        raise InvariantViolation(
            f"expected {what} {expected} next in the history of "
            f"{record.workflow}/{record.instance_id}, found {actual}"
        )
