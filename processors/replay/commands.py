"""What the code of a run asks for, as its host tells the owner; each has a decision.

They are not durable: after a crash the code runs again and asks again. Every one names the entry it
is about by its key.
"""

from typing import TypeAlias

import msgspec

from headwater.processors.runs.requests import (
    Reached,
    Request,
    RollbackRaised,
    StepRaised,
    StepReturned,
)
from headwater.schemas.history import Failure, Json
from headwater.schemas.statuses import EntryKind


class Open(Request, frozen=True):
    """An entry begins.

    Units:  wait_ms is the length of a sleep or the timeout of a wait or child; wake_at_ms the end
            of a `sleep_until`.
    """

    key: str
    name: str
    kind: EntryKind
    ordinal: int
    wait_ms: int | None = None
    wake_at_ms: int | None = None
    event_types: tuple[str, ...] | None = None
    limit: int | None = None
    child_workflow: str | None = None
    child_id: str | None = None
    #: The params of a child, or the first state of a loop.
    value: Json | None = None


class Mark(Request, frozen=True):
    """An entry that is done as soon as it is there: a checkpoint, a removal, the time."""

    key: str
    name: str
    kind: EntryKind
    ordinal: int


class Losers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The losers of a race: their scopes, and those of their steps that nothing is recorded of."""

    scopes: tuple[str, ...]
    steps: tuple[Reached, ...] = ()


class Close(Request, frozen=True):
    """A loop, join or race has its result; a race has losers."""

    key: str
    result: Json
    losers: Losers | None = None


class Fail(Request, frozen=True):
    """A loop, join or race ends with an error; a race may have losers all the same."""

    key: str
    failure: Failure
    losers: Losers | None = None


class Cancel(Request, frozen=True):
    """Nobody awaits an entry any more, nor what is beneath it.

    Shape:  steps are those of them that nothing is recorded of.
    """

    key: str
    steps: tuple[Reached, ...] = ()


class Advance(Request, frozen=True):
    """A loop has come to an iteration, or only forgets those before `trim_before`.

    Shape:  told once the code knows that the run is cancelled.
    """

    key: str
    iteration: int
    state: Json
    trim_before: int = 0
    told: bool = False


class Log(Request, frozen=True):
    """A line of `step.log`, or of the engine.

    Shape:  `once` names what a run is told only once; `missed` has the keys of recorded entries of
            which it tells that the code comes to them no more; `seen` is the latest event that the
            run's own code has seen, if it writes a line that is new.
    """

    level: str
    category: str
    message: str
    data: Json | None
    step_key: str | None
    attempt: int | None
    is_replay: bool
    once: str | None = None
    missed: tuple[str, ...] = ()
    seen: int | None = None


class Suspend(Request, frozen=True):
    """Nothing moves in the code; `seen` is the sequence of the latest event it was told of."""

    seen: int


class BeginRollback(Request, frozen=True):
    """The code failed and handlers are there to be run."""

    failure: Failure


class RolledBack(Request, frozen=True):
    """A rollback handler returned."""

    key: str


class Return(Request, frozen=True):
    """The author's function returned."""

    output: Json


class Raise(Request, frozen=True):
    """The author's function raised, and nothing is left to be rolled back."""

    failure: Failure


CodeCommand: TypeAlias = (
    StepReturned
    | StepRaised
    | Open
    | Mark
    | Close
    | Fail
    | Cancel
    | Advance
    | Log
    | Suspend
    | BeginRollback
    | RolledBack
    | RollbackRaised
    | Return
    | Raise
)
