"""Cancel a run: its code is notified, may clean up, and is terminated if it takes too long.

The run ends as terminated, whatever its code returns; before that, its steps are rolled back.
"""

from datetime import UTC, datetime

from headwater.processors.code.ends import CANCELLED_ERROR, code_ended, end_run, fail_run
from headwater.processors.code.rolling_back import is_to_roll_back
from headwater.processors.code.state import CodeRun
from headwater.processors.code.waits import catch_up
from headwater.processors.runs.decide import may_end
from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.limits import LOG_MESSAGE_MAX, SYSTEM, bounded
from headwater.schemas.failures import ALREADY_CANCELLED
from headwater.schemas.history import (
    CancelRequested,
    CancelRun,
    Failure,
    LogWritten,
    RollbackStarted,
    RunEvent,
    RunResumed,
    RunTerminated,
    SlotGranted,
)
from headwater.schemas.statuses import RunStatus


def cancel(run: CodeRun, command: CancelRun, reached_ms: int, until_ms: int) -> Decision:
    """Notify the code of a run that it is canceled."""
    rejection = may_end(run, command)
    if rejection is not None:
        return rejection
    if run.cancelling is not None:
        return Rejection(
            ALREADY_CANCELLED,
            f"{run.instance_id} is being canceled already; terminate ends it at once",
        )
    granted: list[RunEvent] = []
    if run.waits_for_slot:
        if not any(is_to_roll_back(entry) for entry in run.entries.values()):
            return end_run(run, RunTerminated(command.reason, cancelled=True))
        # Entries of the previous run are rolled back now, which needs no slot.
        granted = [SlotGranted()]
    if run.status is not RunStatus.PAUSED:
        return [*granted, *_cancellation(command.reason, until_ms)]
    # The code cannot be notified while the run is paused.
    resumed = [*granted, RunResumed(), *catch_up(run, reached_ms)]
    return [*resumed, *_cancellation(command.reason, until_ms)]


def _cancellation(reason: str, until_ms: int) -> list[RunEvent]:
    """Return the log line and the event of a cancellation."""
    explanation = f": {reason}" if reason else ""
    until = datetime.fromtimestamp(until_ms / 1_000, UTC).isoformat(timespec="seconds")
    message = f"the instance is cancelled{explanation}; its code may clean up until {until}"
    line = LogWritten("info", SYSTEM, bounded(message, LOG_MESSAGE_MAX))
    return [line, CancelRequested(reason, until_ms)]


def terminate_cancelled(run: CodeRun, why: str) -> list[RunEvent]:
    """End a canceled run without running its code further, except for rollback handlers."""
    failure = Failure(CANCELLED_ERROR, why)
    if not any(is_to_roll_back(entry) for entry in run.entries.values()):
        return fail_run(run, failure)
    return [*code_ended(run, cancelled=True), RollbackStarted(failure, cut_off=True)]
