"""Short steps: nothing was recorded of them when their first attempt returned.

Nearly all steps are short. `decide` and `appliers` handle them, too; this does the same in one go,
without looking for what a short step cannot have. `tests/property/test_short_steps.py` compares
both.
"""

from headwater.processors.code.state import CodeRun, Entry
from headwater.processors.runs.decisions import Request, StepReturned
from headwater.schemas.history import StepCompleted
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus

_ACTIVE, _COMPLETED, _DO = RunStatus.ACTIVE, EntryStatus.COMPLETED, EntryKind.DO


class ShortSteps:
    """Implements `processors.runs.engine.ShortSteps`.

    Args:
        entries_max: Maximum number of entries of a run.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max

    def decide(self, run: CodeRun, request: Request) -> StepCompleted | None:
        """Return the event of a short step; None for any other request.

        A step that sends messages is another request, and so is one of a run that is not active,
        rolls back, or may have too many entries.
        """
        if (
            not isinstance(request, StepReturned)
            or request.attempt != 1
            or request.posts
            or run.status is not _ACTIVE
            or run.rollback is not None
            or request.step.key in run.entries
            or len(run.entries) >= self._entries_max
        ):
            return None
        step = request.step
        return StepCompleted(
            step.key,
            step.name,
            step.ordinal,
            step.at_ms,
            1,
            step.max_attempts,
            step.timeout_ms,
            request.result,
            request.rollback,
        )

    @staticmethod
    def apply(run: CodeRun, event: StepCompleted, at_ms: int) -> None:
        """Apply the event that `decide` returned."""
        sequence = run.sequence
        run.entries[event.key] = Entry(
            name=event.name,
            kind=_DO,
            status=_COMPLETED,
            ordinal=event.ordinal,
            created_at_ms=event.reached_at_ms,
            updated_at_ms=at_ms,
            last_attempt_at_ms=event.reached_at_ms,
            completed_at_ms=at_ms,
            sequence=sequence,
            attempts=event.attempt,
            max_attempts=event.max_attempts,
            timeout_ms=event.timeout_ms,
            result=event.result,
            rollback=event.rollback,
        )
        run.resolved = sequence
        run.hosts_lost = run.back_at_ms = 0
        run.sequence = sequence + 1
        run.updated_at_ms = at_ms
