"""A workflow whose steps write a table of the author's, for two projects that share a database."""

from headwater import Step, StepTx, WorkflowEvent, workflow


@workflow("note")
async def note(event: WorkflowEvent[dict[str, str]], step: Step) -> str:
    def write(tx: StepTx) -> None:
        tx.execute("create table if not exists notes (id text, text text)")
        tx.execute("insert into notes values (%s, %s)", [event.instance_id, event.payload["text"]])

    await step.do("write", write)
    return event.payload["text"]
