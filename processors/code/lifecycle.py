"""Life cycle of a code workflow's run: start with its slot, cancel, roll back, end, restart.

A canceled run ends as terminated, whatever its code returns; before that, its steps are rolled
back.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from headwater.processors.code.host_messages import BeginRollback, Open, OpenCompleted, RolledBack
from headwater.processors.code.state import CodeRun, Entry
from headwater.processors.code.waits import catch_up
from headwater.processors.runs.decide import may_end
from headwater.processors.runs.decisions import (
    STALE,
    Decision,
    Rejection,
    Request,
    RollbackRaised,
    StepReturned,
    StepUnderWay,
)
from headwater.processors.runs.limits import LOG_MESSAGE_MAX, SYSTEM, bounded
from headwater.processors.runs.outbox import ended_by, posts_to_end, queue
from headwater.processors.runs.slots import grant_refusal
from headwater.schemas.failures import ALREADY_CANCELLED
from headwater.schemas.history import (
    CancelRequested,
    CancelRun,
    EntriesCancelled,
    EntryRolledBack,
    Failure,
    GrantSlot,
    LogWritten,
    Post,
    RollbackFailed,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunResumed,
    RunTerminated,
    SlotGranted,
)
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus

#: Error name of a canceled run if its code did not handle the cancellation.
CANCELLED_ERROR: Final = "CancelledError"
#: Reason with which children end.
_ENDED: Final = "its parent has ended"


def end_run(
    run: CodeRun,
    end: RunCompleted | RunErrored | RunTerminated,
    *,
    with_children: bool = True,
) -> list[RunEvent]:
    """Return the end of a run, preceded by its consequences: nothing follows the end.

    Args:
        run: The run.
        end: The event that ends it.
        with_children: Whether to end its children and cancel its open entries as well.
    """
    keys = tuple(run.open) if with_children else ()
    cancelled = isinstance(end, RunTerminated) and end.cancelled
    children = end_children(run, keys, _ENDED, cancelled=cancelled)
    return [*_cancelled(keys), *ended_by(run, end, children)]


def code_ended(run: CodeRun, *, cancelled: bool) -> list[RunEvent]:
    """Return the events that end the code of a run before it is rolled back.

    Args:
        run: The run.
        cancelled: Whether the run was canceled; its children are then canceled as well.
    """
    keys = tuple(run.open)
    children = end_children(run, keys, _ENDED, cancelled=cancelled)
    return [*queue(run, children), *_cancelled(keys)]


def _cancelled(keys: tuple[str, ...]) -> list[RunEvent]:
    return [EntriesCancelled(keys, ended=True)] if keys else []


def fail_run(run: CodeRun, failure: Failure, *, with_children: bool = True) -> list[RunEvent]:
    """Fail a run; one that was canceled ends as terminated."""
    if run.cancelling is None:
        return end_run(run, RunErrored(failure), with_children=with_children)
    end = RunTerminated(run.cancelling.reason, cancelled=True)
    ends = end_run(run, end, with_children=with_children)
    if failure.name == CANCELLED_ERROR:
        return ends
    message = f"once it was cancelled, the run failed: {failure.name}: {failure.message}"
    return [LogWritten("warn", SYSTEM, bounded(message, LOG_MESSAGE_MAX)), *ends]


def with_children_ended(run: CodeRun | None, started: Decision) -> Decision:
    """Return the start of a new run, after ending the children that the previous run still had."""
    if isinstance(started, Rejection) or run is None or run.ended:
        return started
    return [*started, *queue(run, end_children(run, run.open, "its parent was restarted"))]


def end_children(
    run: CodeRun, keys: Iterable[str], reason: str, *, cancelled: bool = False
) -> list[Post]:
    """Return posts that end the children of these entries."""
    children = ((key, run.entries[key].child) for key in keys)
    return posts_to_end(run, children, reason, cancelled=cancelled)


# -- rollback

#: Retries of a rollback handler, and the delay before the first in ms; it doubles.
ROLLBACK_RETRIES: Final = 5
_ROLLBACK_DELAY_MS: Final = 10_000


def is_to_roll_back(entry: Entry) -> bool:
    """Return whether a step's rollback handler has yet to run."""
    return entry.rollback and entry.status is EntryStatus.COMPLETED and not entry.rolled_back


def unfinished_rollback_log(run: CodeRun) -> list[RunEvent]:
    """Return the log line for a rollback that a command ends before all handlers have run."""
    keys = [key for key, entry in run.entries.items() if is_to_roll_back(entry)]
    if run.ended or run.rollback is None or not keys:
        return []
    text = (
        f"run {run.run_number} ends while it is rolled back: the rollback handlers of "
        f"{', '.join(keys)} have not run, and will not"
    )
    return [LogWritten("warn", SYSTEM, bounded(text, LOG_MESSAGE_MAX))]


def begin_rollback(run: CodeRun, request: BeginRollback, _: int) -> Decision:
    """Begin the rollback of a run after its code failed."""
    if run.rollback:
        return STALE
    ended = code_ended(run, cancelled=run.cancelling is not None)
    return [*ended, RollbackStarted(request.failure)]


def rolled_back(run: CodeRun, request: RolledBack, _: int) -> Decision:
    """Record that a rollback handler returned."""
    entry = run.entries.get(request.key)
    if run.rollback is None or entry is None or entry.rolled_back:
        return STALE
    return [EntryRolledBack(request.key)]


def rollback_raised(run: CodeRun, request: RollbackRaised, now_ms: int) -> Decision:
    """Schedule a retry of a failed rollback handler, or stop retrying it."""
    entry = run.entries.get(request.key)
    if run.rollback is None or entry is None or entry.rolled_back:
        return STALE
    attempt = entry.rollback_attempts + 1
    if request.attempt != attempt:
        return STALE
    if attempt <= ROLLBACK_RETRIES:
        delay = _ROLLBACK_DELAY_MS * 2 ** (attempt - 1)
        return [RollbackFailed(request.key, attempt, request.failure, now_ms + delay)]
    message = (
        f"the rollback of {request.key} failed {attempt} times and is given up: "
        f"{request.failure.name}: {request.failure.message}"
    )
    return [
        LogWritten("error", SYSTEM, message[:2_048], step_key=request.key, attempt=attempt),
        EntryRolledBack(request.key, request.failure),
    ]


# -- cancellation


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


# -- start


def begin(run: CodeRun, command: GrantSlot, reached_ms: int) -> Decision:
    """Start a run that was granted its slot, or fail it if no slot can be granted."""
    rejection = grant_refusal(run, command)
    if rejection is not None:
        return rejection
    if command.failure is not None:
        return fail_run(run, command.failure)
    # Sleeps of a retried run may have ended while it waited.
    later = [] if run.status is RunStatus.PAUSED else catch_up(run, reached_ms)
    return [SlotGranted(), *later]


def counted_key(run: CodeRun, request: Request) -> str | None:
    """Return the key of the entry that a request would add to those that are limited, if any."""
    match request:
        case StepUnderWay() | StepReturned():
            key = request.step.key
        case Open(kind=kind) | OpenCompleted(kind=kind) if kind is not EntryKind.SLEEP:
            key = request.key
        case _:
            return None
    return None if key in run.entries else key


def counted_entries(run: CodeRun) -> int:
    """Return the number of entries that are limited: all but sleeps."""
    return sum(entry.kind is not EntryKind.SLEEP for entry in run.entries.values())
