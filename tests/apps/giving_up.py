"""Workflows that give up a step whose SQL is under way."""

import asyncio
from pathlib import Path
from typing import Any

from headwater import NonRetryableError, Step, StepTx, WorkflowEvent, workflow

Params = WorkflowEvent[dict[str, str]]


def pay(tx: StepTx) -> str:
    # Whoever looks on holds this lock for as long as the SQL is to take.
    tx.execute("SELECT pg_advisory_xact_lock(1)", [])
    tx.execute("INSERT INTO charges VALUES (1)", [])
    return "paid"


async def paid(event: Params, step: Step) -> Any:  # noqa: ANN401 (whatever a step gives)
    file = Path(event.payload["undone"])
    return await step.do("pay", pay, rollback=file.write_text)


async def told(event: Params, step: Step) -> None:
    await step.wait_for_event("go", type="go")
    await step.do("tell", Path(event.payload["told"]).touch)


@workflow("races")
async def races(event: Params, step: Step) -> None:
    await step.checkpoint("before money")
    await step.race("first", pay=lambda step: paid(event, step), go=lambda step: told(event, step))
    raise NonRetryableError("no use")


@workflow("groups")
async def groups(event: Params, step: Step) -> None:
    async def fails() -> None:
        await told(event, step)
        raise NonRetryableError("no use")

    await step.checkpoint("before money")
    async with asyncio.TaskGroup() as group:
        group.create_task(paid(event, step))
        group.create_task(fails())
