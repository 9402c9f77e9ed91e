"""Life cycle of an entry: every transition of its status.

Read a row as: in this status, this event leads to one of those statuses; fields of the event decide
which. `None` is the status before the first record: a short step has no entry until its first
attempt has ended. A timed-out attempt may still complete while the step waits for the next one.
"""

from typing import Final

from headwater.schemas.history import (
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    StepCompleted,
    StepFailed,
    StepsRetried,
    StepStarted,
)
from headwater.schemas.statuses import EntryStatus

_PENDING, _WAITING = EntryStatus.PENDING, EntryStatus.WAITING

TRANSITIONS: Final[dict[type, dict[EntryStatus | None, frozenset[EntryStatus]]]] = {
    EntryOpened: {None: frozenset({_PENDING, _WAITING})},
    StepStarted: {None: frozenset({_PENDING})},
    StepCompleted: dict.fromkeys((None, _PENDING, _WAITING), frozenset({EntryStatus.COMPLETED})),
    StepFailed: dict.fromkeys(
        (None, _PENDING, _WAITING), frozenset({_WAITING, EntryStatus.ERRORED})
    ),
    StepsRetried: {_WAITING: frozenset({_PENDING})},
    EntryCompleted: dict.fromkeys((_PENDING, _WAITING), frozenset({EntryStatus.COMPLETED})),
    EntryErrored: dict.fromkeys((_PENDING, _WAITING), frozenset({EntryStatus.ERRORED})),
    EntriesCancelled: dict.fromkeys((_PENDING, _WAITING), frozenset({EntryStatus.CANCELLED})),
}
