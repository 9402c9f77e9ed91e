"""How a run begins that has waited for its slot."""

from headwater.processors.replay.ends import failed
from headwater.processors.replay.state import CodeRun
from headwater.processors.replay.waits import caught_up
from headwater.processors.runs.decisions import Decision
from headwater.processors.runs.slots import granted
from headwater.schemas.history import GrantSlot, SlotGranted
from headwater.schemas.statuses import RunStatus


def begin(run: CodeRun, command: GrantSlot, reached_ms: int) -> Decision:
    """A run has its slot, or fails because it cannot have one."""
    refused = granted(run, command)
    if refused is not None:
        return refused
    if command.failure is not None:
        return failed(run, command.failure)
    # Of a run that is retried, sleeps may have ended while it waited.
    later = [] if run.status is RunStatus.PAUSED else caught_up(run, reached_ms)
    return [SlotGranted(), *later]
