"""The state of a code workflow's run: its entries, by key.

An entry is a call of `step.<something>` that was recorded. Its key is the path of names that leads
to it, such as `pages/~3/fetch`.
"""

import msgspec

from headwater.processors.runs.state import BEGINNING, UNRESOLVED, Entry, Run
from headwater.schemas.history import Failure
from headwater.schemas.statuses import EntryKind

__all__ = ["BEGINNING", "CONTAINERS", "UNRESOLVED", "Cancelling", "CodeRun", "Entry"]

#: Kinds that hold others: the key of one is a beginning of the keys of what it holds.
CONTAINERS = frozenset({EntryKind.JOIN, EntryKind.RACE, EntryKind.LOOP})


class Cancelling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run was cancelled: by which event of it, why, and how long its code may clean up."""

    sequence: int
    reason: str
    until_ms: int


class CodeRun(Run, kw_only=True):
    """A run of a code workflow.

    Attributes:
        entries: What the code has reached, by key.
        open: Keys of the entries without a result, in the order of opening.
        resolved: Sequence of the latest event that the code has to see.
        retried: Sequence of the latest event by which attempts began.
        rollback: Why the run is being rolled back.
        hosts_lost: How often in a row its code ended the host process.
        back_at_ms: When it is tried again after that.
        cancelling: That it is to end.
        logged_at: The latest event that its code had seen when it logged last.
        lines: How many lines it has logged since that event.
        told: What the engine has told it, and tells it no more.
        left: Keys of the entries that were open when the code ended.
        ordinals: Of entries that a retry does again, their ordinals in the run before.
        first_ordinal: That of the first entry which the run before does not have.
    """

    entries: dict[str, Entry] = msgspec.field(default_factory=dict)
    open: dict[str, None] = msgspec.field(default_factory=dict)
    resolved: int = 0
    retried: int = 0
    rollback: Failure | None = None
    hosts_lost: int = 0
    back_at_ms: int = 0
    logged_at: int = BEGINNING
    lines: int = 0
    cancelling: Cancelling | None = None
    told: dict[str, None] = msgspec.field(default_factory=dict)
    left: dict[str, None] = msgspec.field(default_factory=dict)
    ordinals: dict[str, int] = msgspec.field(default_factory=dict)
    first_ordinal: int = 0
