"""The life of an entry: every move that its status makes.

A short step has no entry before its first attempt has ended; that is `None` here. To be read as: in
this status, this event leads to one of those; which of several, the event's own fields say. An
attempt that was given up may have its result all the same, while the step waits for the next.
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
