"""State of a code workflow's run: its entries, by key.

An entry is a recorded call of `step.<something>`. Its key is the path of names that leads to it,
such as `pages/~3/fetch`.
"""

import msgspec

from headwater.processors.runs.state import BEGINNING, UNRESOLVED, Entry, Run
from headwater.schemas.history import Failure
from headwater.schemas.statuses import EntryKind

__all__ = ["BEGINNING", "CONTAINERS", "UNRESOLVED", "Cancelling", "CodeRun", "Entry"]

#: Kinds that contain other entries, whose keys begin with the key of the container.
CONTAINERS = frozenset({EntryKind.JOIN, EntryKind.RACE, EntryKind.LOOP})


class Cancelling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Cancellation of a run: the sequence of its event, the reason, and the end of the cleanup."""

    sequence: int
    reason: str
    until_ms: int


class CodeRun(Run, kw_only=True):
    """A run of a code workflow.

    Attributes:
        entries: Entries that the code has reached, by key.
        open: Keys of the entries without a result, in the order of opening.
        resolved: Sequence of the latest event that the code has to see.
        retried: Sequence of the latest event that started attempts.
        rollback: Why the run is being rolled back.
        hosts_lost: How often in a row its code crashed its host process.
        back_at_ms: When it is retried after that.
        cancelling: Its cancellation, if it was canceled.
        logged_at: Sequence of the latest event that its code had seen when it last logged.
        lines: Number of lines that it has logged since that event.
        logged_once: Names of the one-time warnings that were written.
        left: Keys of the entries that were open when the code ended.
        ordinals: Ordinals in the previous run of entries that a retry executes again.
        first_ordinal: Ordinal of the first entry that the previous run does not have.
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
    logged_once: dict[str, None] = msgspec.field(default_factory=dict)
    left: dict[str, None] = msgspec.field(default_factory=dict)
    ordinals: dict[str, int] = msgspec.field(default_factory=dict)
    first_ordinal: int = 0
