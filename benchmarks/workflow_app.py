"""The workflows that are measured: as little as a workflow can do, so that all else is ours."""

from typing import Final

from headwater import Step, WorkflowEvent, workflow

#: Steps of the workflow `ten`.
TEN: Final = 10
#: Its output, by which whoever reads the history knows the end of a run without decoding records.
ENDED: Final = "ten steps are done"


async def _nothing() -> None:
    return None


@workflow("ten")
async def ten(_event: WorkflowEvent[None], step: Step) -> str:
    """Ten steps that do nothing."""
    for number in range(TEN):
        await step.do(f"step {number}", _nothing)
    return ENDED


@workflow("many")
async def many(event: WorkflowEvent[int], step: Step) -> None:
    """As many steps as asked for."""
    for number in range(event.payload):
        await step.do(f"step {number}", _nothing)


@workflow("many-then-wait")
async def many_then_wait(event: WorkflowEvent[int], step: Step) -> None:
    """As many steps as asked for, then a wait, which a replay has to get to."""
    for number in range(event.payload):
        await step.do(f"step {number}", _nothing)
    await step.wait_for_event("go on", type="go-on")


@workflow("sleeper")
async def sleeper(_event: WorkflowEvent[None], step: Step) -> None:
    """Sleeps for longer than anybody measures."""
    await step.sleep("long", "30 days")
