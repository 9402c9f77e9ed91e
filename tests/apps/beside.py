"""Parcels, on their way beside other apps: every callback takes a while and marks its beginning."""

from headwater import Step, WorkflowEvent, workflow
from tests.e2e.workflow_app import takes

STOPS = 10


@workflow("parcel")
async def parcel(event: WorkflowEvent[object], step: Step) -> list[object]:
    return [
        await step.do(f"stop {number}", takes(event, f"stop {number}", number, ms=1_000))
        for number in range(STOPS)
    ]
