"""The workflow that runs while the system around it is upgraded."""

from typing import Any

from headwater import Step, WorkflowEvent, workflow


@workflow("paced")
async def paced(event: WorkflowEvent[Any], step: Step) -> str:
    """Two steps and a rest."""
    first = await step.do("first", lambda: "one")
    await step.sleep("rest", "1 second")
    return first + await step.do("second", lambda: "two")
