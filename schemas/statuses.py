"""How runs and their entries stand, and what entries are; the values are those of the API."""

from enum import StrEnum
from typing import Final


class RunStatus(StrEnum):
    """How a run stands."""

    ACTIVE = "active"
    WAITING = "waiting"
    PAUSED = "paused"
    ERRORED = "errored"
    TERMINATED = "terminated"
    COMPLETE = "complete"


#: A run in one of these has ended; only a restart follows or, if it has errored, a retry.
ENDED: Final = frozenset({RunStatus.ERRORED, RunStatus.TERMINATED, RunStatus.COMPLETE})


class EntryStatus(StrEnum):
    """How an entry of a history stands."""

    PENDING = "pending"
    WAITING = "waiting"
    COMPLETED = "completed"
    ERRORED = "errored"
    CANCELLED = "cancelled"


#: An entry in one of these has no result yet.
OPEN: Final = frozenset({EntryStatus.PENDING, EntryStatus.WAITING})


class EntryKind(StrEnum):
    """What an entry of a history is; the values are those of `history.steps[i].type`."""

    DO = "do"
    SLEEP = "sleep"
    WAIT = "wait_for_event"
    LOOP = "loop"
    JOIN = "join"
    RACE = "race"
    CHILD = "child"
    CHECKPOINT = "checkpoint"
    REMOVED = "removed"
    #: `step.now()`; not shown to people.
    NOW = "now"
