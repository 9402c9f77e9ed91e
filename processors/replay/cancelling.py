"""What a cancelled run goes through: its code is told, may clean up, and is cut off if need be.

It is terminated, whatever its code makes of it; what that has done is rolled back before.
"""

from datetime import UTC, datetime

from headwater.processors.replay.ends import TOLD, code_ended, ending, failed
from headwater.processors.replay.rolling_back import is_to_roll_back
from headwater.processors.replay.state import CodeRun
from headwater.processors.replay.waits import caught_up
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
    """Has the code of a run told that it is to end."""
    refused = may_end(run, command)
    if refused is not None:
        return refused
    if run.cancelling is not None:
        return Rejection(
            ALREADY_CANCELLED,
            f"{run.instance_id} is being cancelled already; terminate ends it at once",
        )
    before: list[RunEvent] = []
    if run.waits_for_slot:
        if not any(is_to_roll_back(entry) for entry in run.entries.values()):
            return ending(run, RunTerminated(command.reason, cancelled=True))
        # What a run before this one has done is undone now: for that nobody needs a slot.
        before = [SlotGranted()]
    if run.status is not RunStatus.PAUSED:
        return [*before, *_told(command.reason, until_ms)]
    # Its code cannot be told while it stands still.
    resumed = [*before, RunResumed(), *caught_up(run, reached_ms)]
    return [*resumed, *_told(command.reason, until_ms)]


def _told(reason: str, until_ms: int) -> list[RunEvent]:
    """Has the code of a run told that it is cancelled, and people, too."""
    why = f": {reason}" if reason else ""
    until = datetime.fromtimestamp(until_ms / 1_000, UTC).isoformat(timespec="seconds")
    message = f"the instance is cancelled{why}; its code may clean up until {until}"
    line = LogWritten("info", SYSTEM, bounded(message, LOG_MESSAGE_MAX))
    return [line, CancelRequested(reason, until_ms)]


def cut_off(run: CodeRun, why: str) -> list[RunEvent]:
    """Ends a cancelled run without its code, but for what that has to roll back."""
    failure = Failure(TOLD, why)
    if not any(is_to_roll_back(entry) for entry in run.entries.values()):
        return failed(run, failure)
    return [*code_ended(run, cancelled=True), RollbackStarted(failure, cut_off=True)]
