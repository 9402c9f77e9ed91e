"""Start a run that has waited for its slot."""

from headwater.processors.code.ends import fail_run
from headwater.processors.code.state import CodeRun
from headwater.processors.code.waits import catch_up
from headwater.processors.runs.decisions import Decision
from headwater.processors.runs.slots import grant_refusal
from headwater.schemas.history import GrantSlot, SlotGranted
from headwater.schemas.statuses import RunStatus


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
