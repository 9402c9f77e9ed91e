"""Entries of every kind, for code that changes them."""

from headwater import Break, Step, WorkflowEvent, workflow


async def one_step(step: Step) -> object:
    return await step.do("load", lambda: 1)


async def one_page(step: Step, state: dict) -> object:
    await step.do("load", lambda: 1)
    return Break(None)


@workflow("invoice")
async def invoice(event: WorkflowEvent, step: Step) -> str:
    return "paid"


#: How each kind of entry comes about, and what `history.steps[i].type` calls it.
OLD = {
    "step": (lambda step: step.do("old", lambda: 1), "do"),
    "loop": (lambda step: step.loop("old", one_page, state={}), "loop"),
    "sleep": (lambda step: step.sleep("old", "1 second"), "sleep"),
    "message": (lambda step: step.wait_for_event("old", type="go"), "wait_for_event"),
    "join": (lambda step: step.join("old", only=one_step), "join"),
    "race": (lambda step: step.race("old", only=one_step), "race"),
    "child": (lambda step: step.run_workflow("old", "invoice", id="inv-1"), "child"),
    "checkpoint": (lambda step: step.checkpoint("old"), "checkpoint"),
}
