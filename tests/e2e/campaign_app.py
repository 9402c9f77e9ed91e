"""The workflow of campaigns: two steps and a short sleep, and no environment of its own."""

from headwater import Step, WorkflowEvent, workflow


@workflow("nap")
async def nap(event: WorkflowEvent, step: Step) -> int:
    """Work, sleep, and work again."""
    await step.do("before", lambda: 1)
    await step.sleep("nap", "1 second")
    result: int = await step.do("after", lambda: 2)
    return result
