"""What a host is measured with."""

from headwater import Step, WorkflowEvent, workflow


async def nothing() -> None:
    pass


@workflow("steps")
async def steps(event: WorkflowEvent[int], step: Step) -> None:
    for number in range(event.payload):
        await step.do(f"step {number}", nothing)


@workflow("sync-steps")
async def sync_steps(event: WorkflowEvent[int], step: Step) -> None:
    for number in range(event.payload):
        await step.do(f"step {number}", lambda: None)
