"""The state of a code workflow's run: its entries, by key.

An entry is a call of `step.<something>` that was recorded. Its key is the path of names that leads
to it, such as `pages/~3/fetch`.
"""

from typing import Final

import msgspec

from headwater.processors.runs.state import Run
from headwater.schemas.history import Child, EntryKind, Failure, Json
from headwater.schemas.statuses import OPEN, EntryStatus

__all__ = ["CONTAINERS", "OPEN", "UNRESOLVED", "CodeRun", "Entry", "EntryStatus"]

#: Kinds that hold others: the key of one is a beginning of the keys of what it holds.
CONTAINERS = frozenset({EntryKind.JOIN, EntryKind.RACE, EntryKind.LOOP})

#: The sequence of an entry without a result. What a retry has kept has one below it.
UNRESOLVED: Final = -1


class Entry(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """An entry.

    Shape:  ordinal counts entries in the order in which they were first reached; sequence is that
            of the event that resolved it, by which results are given; that of a loop which is open
            is of its latest commit. wake_at_ms is the end of a
            sleep, the deadline of a wait or of a child, or the time of a step's next attempt.
            max_attempts 0 is any number. `iteration` and `commits` (state by iteration) belong to a
            loop, which replays from its latest commit and rolls back from its earliest; what lies
            before its iteration `trimmed` is forgotten (see `trimming.py`).
    """

    name: str
    kind: EntryKind
    status: EntryStatus
    ordinal: int
    created_at_ms: int
    updated_at_ms: int
    sequence: int = UNRESOLVED
    attempts: int = 0
    max_attempts: int = 1
    timeout_ms: int = 0
    result: Json | None = None
    failure: Failure | None = None
    wake_at_ms: int | None = None
    event_types: tuple[str, ...] | None = None
    limit: int | None = None
    child: Child | None = None
    iteration: int = 0
    commits: dict[int, Json] = {}
    rollback: bool = False
    rolled_back: bool = False
    rollback_attempts: int = 0
    rollback_at_ms: int = 0
    trimmed: int = 0


class CodeRun(Run, kw_only=True):
    """A run of a code workflow.

    Shape:  `open` has the keys of the entries without a result, in the order of opening; resolved
            is the sequence of the latest event that the code has to see, and retried that of the
            latest by which attempts began; rollback why the run is being rolled back; hosts_lost
            how often in a row its code took the host with it, and back_at_ms when it is tried
            again; logged_at what `resolved` was when its code logged last, and lines how many it
            has logged since it was that.
    """

    entries: dict[str, Entry] = msgspec.field(default_factory=dict)
    open: dict[str, None] = msgspec.field(default_factory=dict)
    resolved: int = 0
    retried: int = 0
    rollback: Failure | None = None
    hosts_lost: int = 0
    back_at_ms: int = 0
    logged_at: int = 0
    lines: int = 0
