"""Requests of a run's code, as the host sends them to the owner. A decision follows from each.

Requests are not durable: after a crash the code runs again and repeats them. Each one names its
entry by the key.
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
    """Open an entry.

    Attributes:
        wait_ms: Length of a sleep, or timeout of a wait or child, in ms.
        wake_at_ms: End of a `sleep_until`, in ms since the epoch.
        value: The params of a child, or the initial state of a loop.
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
    value: Json | None = None


class OpenCompleted(Request, frozen=True):
    """Record an entry that completes immediately: a checkpoint, a removal, the current time."""

    key: str
    name: str
    kind: EntryKind
    ordinal: int


class Losers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The losers of a race: their scopes, and those of their steps that are not recorded yet."""

    scopes: tuple[str, ...]
    steps: tuple[Reached, ...] = ()


class Close(Request, frozen=True):
    """Complete a loop, join or race; a race has losers."""

    key: str
    result: Json
    losers: Losers | None = None


class Fail(Request, frozen=True):
    """Fail a loop, join or race; a failed race may have losers as well."""

    key: str
    failure: Failure
    losers: Losers | None = None


class Cancel(Request, frozen=True):
    """Cancel an entry that the code no longer awaits, and everything under it.

    Attributes:
        steps: Affected steps that are not recorded yet.
    """

    key: str
    steps: tuple[Reached, ...] = ()


class Advance(Request, frozen=True):
    """Commit an iteration of a loop, or only drop iterations before `trim_before`.

    Attributes:
        knows_cancelled: Whether the code knows that the run is canceled.
    """

    key: str
    iteration: int
    state: Json
    trim_before: int = 0
    knows_cancelled: bool = False


class Log(Request, frozen=True):
    """Write a line of `step.log`, or of the engine.

    Attributes:
        once: Name of a warning that is written only once per run.
        missed: Keys of recorded entries that, according to this line, the code no longer reaches.
        seen: Sequence of the latest event that the run's own code has seen, if the line is new.
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
    """Nothing progresses in the code; `seen` is the sequence of the latest event that it knows."""

    seen: int


class BeginRollback(Request, frozen=True):
    """The code failed, and there are rollback handlers to run."""

    failure: Failure


class RolledBack(Request, frozen=True):
    """A rollback handler returned."""

    key: str


class Return(Request, frozen=True):
    """The author's function returned."""

    output: Json


class Raise(Request, frozen=True):
    """The author's function raised, and nothing is left to roll back."""

    failure: Failure


CodeCommand: TypeAlias = (
    StepReturned
    | StepRaised
    | Open
    | OpenCompleted
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
