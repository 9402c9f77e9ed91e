"""Decides how a run is rolled back: which steps are, and what becomes of handlers that fail."""

from typing import Final

from headwater.processors.replay.commands import BeginRollback, RolledBack
from headwater.processors.replay.ends import code_ended
from headwater.processors.replay.state import CodeRun, Entry
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

#: Retries of a rollback handler, and the delay before the first; it doubles.
ROLLBACK_RETRIES: Final = 5
_ROLLBACK_DELAY_MS: Final = 10_000


def is_to_roll_back(entry: Entry) -> bool:
    """Whether a step's handler has not run yet."""
    return entry.rollback and entry.status is EntryStatus.COMPLETED and not entry.rolled_back


def left_undone(run: CodeRun) -> list[RunEvent]:
    """Return the log line of a rollback that a command ends before all handlers have run."""
    keys = [key for key, entry in run.entries.items() if is_to_roll_back(entry)]
    if run.ended or run.rollback is None or not keys:
        return []
    text = (
        f"run {run.run_number} ends while it is rolled back: the rollback handlers of "
        f"{', '.join(keys)} have not run, and will not"
    )
    return [LogWritten("warn", SYSTEM, bounded(text, LOG_MESSAGE_MAX))]


def begin_rollback(run: CodeRun, asked: BeginRollback, _: int) -> Decision:
    """The code has failed, and there is something to undo."""
    if run.rollback:
        return STALE
    ended = code_ended(run, cancelled=run.cancelling is not None)
    return [*ended, RollbackStarted(asked.failure)]


def rolled_back(run: CodeRun, asked: RolledBack, _: int) -> Decision:
    """A handler is through."""
    entry = run.entries.get(asked.key)
    if run.rollback is None or entry is None or entry.rolled_back:
        return STALE
    return [EntryRolledBack(asked.key)]


def rollback_raised(run: CodeRun, asked: RollbackRaised, now_ms: int) -> Decision:
    """A handler is tried again, or given up."""
    entry = run.entries.get(asked.key)
    if run.rollback is None or entry is None or entry.rolled_back:
        return STALE
    attempt = entry.rollback_attempts + 1
    if asked.attempt != attempt:
        return STALE
    if attempt <= ROLLBACK_RETRIES:
        delay = _ROLLBACK_DELAY_MS * 2 ** (attempt - 1)
        return [RollbackFailed(asked.key, attempt, asked.failure, now_ms + delay)]
    message = (
        f"the rollback of {asked.key} failed {attempt} times and is given up: "
        f"{asked.failure.name}: {asked.failure.message}"
    )
    return [
        LogWritten("error", SYSTEM, message[:2_048], step_key=asked.key, attempt=attempt),
        EntryRolledBack(asked.key, asked.failure),
    ]
