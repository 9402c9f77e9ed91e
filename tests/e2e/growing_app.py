"""A workflow that waits for a time and for an event, before and after the topics get partitions."""

from headwater import ReceivedEvent, Step, WorkflowEvent, workflow


@workflow("patient")
async def patient(event: WorkflowEvent[dict[str, str]], step: Step) -> list[str]:
    async def note() -> str:
        return f"began {event.payload['text']}"

    async def end() -> str:
        return "ended"

    began = await step.do("begin", note)
    await step.sleep("rest", event.payload["rest"])
    go: ReceivedEvent[str] = await step.wait_for_event("go", type="go", timeout="7 days")
    return [began, go.payload, await step.do("end", end)]
