"""Decide how a run is rolled back: which steps, and what happens when handlers fail."""

from typing import Final

from headwater.processors.code.commands import BeginRollback, RolledBack
from headwater.processors.code.ends import code_ended
from headwater.processors.code.state import CodeRun, Entry
from headwater.processors.runs.decisions import STALE, Decision
from headwater.processors.runs.limits import LOG_MESSAGE_MAX, SYSTEM, bounded
from headwater.processors.runs.requests import RollbackRaised
from headwater.schemas.history import (
    EntryRolledBack,
    LogWritten,
    RollbackFailed,
    RollbackStarted,
    RunEvent,
)
from headwater.schemas.statuses import EntryStatus

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
    """Begin the rollback of a run whose code failed."""
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
