"""The port of engines: what the house has to know of how the runs of one kind decide.

Owners, snapshots, takeovers, the harness and the simulation know runs, and are handed their engines
by whoever composes them. A run's `kind` names its engine for as long as its instance exists.

An engine is pure: no clock, no randomness, no I/O. It decides events; whoever appends them applies
them, one by one and in order, before it asks again.
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
    """How the runs of one kind decide."""

    @property
    def kind(self) -> str:
        """The name by which histories and snapshots know it."""

    # -- deciding

    def decide_command(self, run: R | None, command: RunCommand, facts: Facts) -> Decision:
        """Decides a command; without a run it creates an instance."""

    def decide(self, run: R, request: Request, now_ms: int) -> Decision:
        """Decides what code, a step, a host or the clock asks for; too late, it is rejected."""

    def give_up(self, run: R, failure: Failure, *, with_children: bool = True) -> list[RunEvent]:
        """Ends a run that cannot go on.

        Shape:  without its children, if to end them is too large for a record.
        """

    def place_of(self, run: R, decided: Sequence[RunEvent], event: RunEvent) -> str:
        """Where in its run an event of a decision belongs, for its author; empty for all of it."""

    @property
    def to_decide_less(self) -> str:
        """What an author can do if too much is decided at once."""

    # -- applying

    def begin(self, before: R | None, record: HistoryAppended) -> R:
        """The state of a new run after the RunStarted that its record begins with.

        Shape:  before is the run before it, which may be kept in part.
        """

    def apply(self, run: R, event: LogEvent, at_ms: int) -> object:
        """Applies an event other than RunStarted, in place.

        Errors: InvariantViolation, for what cannot follow the state.
        """

    # -- what follows

    def message_for_host(
        self, run: R, event: RunEvent, activation: int, sequence: int
    ) -> HostMessage | None:
        """What the code of a run has to see of an event, once that is applied and durable.

        Shape:  sequence is the event's.
        """

    def activate(self, run: R, activation: int) -> HostMessage | None:
        """What makes a host work on a run; None if the run has no code.

        Shape:  holds nothing that later events change.
        """

    def is_runnable(self, run: R, now_ms: int) -> bool:
        """Whether the code of a run can go on now."""

    def attempts_due(self, run: R, activation: int, now_ms: int) -> Mapping[str, HostMessage]:
        """The attempts that a host has to begin now, by the keys of their entries.

        Shape:  some may be under way.
        """

    def next_wake_ms(self, run: R, after_ms: int = 0) -> int | None:
        """When, after a time, time next moves the run, or None."""

    def attempt_awaited(self, run: R, key: str) -> int | None:
        """The number of the attempt of a step whose result is still wanted, or None."""

    # -- the state at rest

    @property
    def format(self) -> int:
        """The version of the encoding of states."""

    def encode(self, run: R) -> bytes:
        """The bytes of a state."""

    def decode(self, state: bytes) -> R:
        """The state of bytes of this format."""

    def drop_finished(self, run: R) -> None:
        """Takes out of a run that has ended what neither a restart nor a retry needs."""

    def steps(self, run: R) -> list[tuple[str, Entry]]:
        """The entries that people see, in the order in which they were first reached."""


#: Engines by kind. What is decided within is a matter of each; between them only runs are known.
Engines: TypeAlias = Mapping[str, Engine[Any]]


def engine_of(engines: Engines, kind: str) -> Engine[Any]:
    """The engine of a kind of runs.

    Errors: NewerSchema, for a kind that nobody has handed in.
    """
    engine = engines.get(kind)
    if engine is None:
        known = ", ".join(sorted(engines))
        raise NewerSchema(
            f"expected runs of one of the kinds {known}, found one of kind {kind!r}, which a newer "
            "release started; start that release here"
        )
    return engine
