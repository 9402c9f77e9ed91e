"""Life cycle of a run: every transition of its status.

A transition that is not in the table cannot happen: `decide` rejects it, and an applier that meets
it in a history raises InvariantViolation. Events without a row leave the status as it is, and none
of them follows the end of a run. Read a row as: in this status, this event leads to that status.
Code that has passed its last step boundary may end while the run is paused.
"""

from typing import Final

from headwater.schemas.history import (
    CancelRequested,
    EntryCompleted,
    EntryErrored,
    FanInActivated,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SlotAsked,
    SlotGranted,
    StepCompleted,
    StepFailed,
    StepsRetried,
    TasksDispatched,
    TokenCompleted,
)
from headwater.schemas.statuses import RunStatus

_ACTIVE, _WAITING, _PAUSED = RunStatus.ACTIVE, RunStatus.WAITING, RunStatus.PAUSED

TRANSITIONS: Final[dict[type, dict[RunStatus, RunStatus]]] = {
    RunStarted: dict.fromkeys(RunStatus, _ACTIVE),
    SlotAsked: {_ACTIVE: _WAITING},
    SlotGranted: {_WAITING: _ACTIVE, _PAUSED: _PAUSED},
    RunSuspended: {_ACTIVE: _WAITING},
    RunPaused: {_ACTIVE: _PAUSED, _WAITING: _PAUSED},
    RunResumed: {_PAUSED: _ACTIVE},
    # A paused run is resumed first.
    CancelRequested: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE},
    RollbackStarted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    RunTerminated: dict.fromkeys((_ACTIVE, _WAITING, _PAUSED), RunStatus.TERMINATED),
    RunCompleted: dict.fromkeys((_ACTIVE, _WAITING, _PAUSED), RunStatus.COMPLETE),
    RunErrored: dict.fromkeys((_ACTIVE, _WAITING, _PAUSED), RunStatus.ERRORED),
    # Only when no attempt is left: a failed attempt that is retried resolves nothing.
    StepFailed: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    StepsRetried: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE},
    StepCompleted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    EntryCompleted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    EntryErrored: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    TasksDispatched: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE},
    TokenCompleted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    FanInActivated: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
}
