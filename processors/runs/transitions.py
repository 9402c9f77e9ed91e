"""The life of a run: every move that its status makes.

What is not in the table cannot happen: `decide` answers it with a rejection, and an applier that
meets it in a history raises InvariantViolation. Events that are not named here leave the status
as it is, and none of them follows the end of a run. To be read as: in this status, this event
leads to that one. Code that has passed its last step boundary may end while the run is paused.
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
    # One that is paused goes on first.
    CancelRequested: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE},
    RollbackStarted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    RunTerminated: dict.fromkeys((_ACTIVE, _WAITING, _PAUSED), RunStatus.TERMINATED),
    RunCompleted: dict.fromkeys((_ACTIVE, _WAITING, _PAUSED), RunStatus.COMPLETE),
    RunErrored: dict.fromkeys((_ACTIVE, _WAITING, _PAUSED), RunStatus.ERRORED),
    # Only when no attempt is left: a retry resolves nothing.
    StepFailed: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    StepsRetried: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE},
    StepCompleted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    EntryCompleted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    EntryErrored: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    TasksDispatched: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE},
    TokenCompleted: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
    FanInActivated: {_ACTIVE: _ACTIVE, _WAITING: _ACTIVE, _PAUSED: _PAUSED},
}
