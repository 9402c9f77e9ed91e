"""Workflows that are asked for over HTTP."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from headwater import (
    Break,
    Continue,
    GraphWorkflow,
    NonRetryableError,
    Retry,
    Step,
    StepFailedError,
    WorkflowEvent,
    task,
    workflow,
)

_Event = WorkflowEvent[Any]


@workflow("echo")
async def echo(event: _Event, step: Step) -> object:
    """Returns its params, through a step."""
    return await step.do("say", lambda: event.payload)


@workflow("waiting")
async def waiting(event: _Event, step: Step) -> list[Any]:
    """Takes as many events as it is told, one after the other."""
    return [
        (await step.wait_for_event(f"go {number}", type="go", timeout="1 hour")).payload
        for number in range(event.payload or 1)
    ]


@workflow("hooked")
async def hooked(event: _Event, step: Step) -> object:
    """Waits for a call of its hook."""
    hook = await step.hook("approval", timeout="1 hour")
    return (await step.wait_for_event("answer", type=hook.type, timeout="1 hour")).payload


@workflow("tidy")
async def tidy(event: _Event, step: Step) -> None:
    """Sleeps long; told that it is cancelled, it cleans up, and what it did is undone."""
    await step.checkpoint("before money")
    await step.do("charge", lambda: "charged", rollback=lambda _: None)
    try:
        await step.sleep("nap", "1 day")
    finally:
        await step.do("sweep", lambda: "swept")


@workflow("choosy")
async def choosy(event: _Event, step: Step) -> int:
    """Waits for one of two types."""
    result = await step.wait_for_events("either", types=["yes", "no"], limit=2, timeout="1 hour")
    return len(result)


@workflow("telling")
async def telling(event: _Event, step: Step) -> int:
    """Writes lines, waits, has many steps."""
    lines = step.log
    await lines.info("begun", {"of": [1, 2]}, category="test")
    await lines.warn("careful")
    for number in range(event.payload):
        await step.do(f"step {number}", lambda number=number: {"number": number})
    await step.wait_for_event("end", type="end", timeout="1 hour")
    await lines.info("ended", category="test")
    return 1


@workflow("turning")
async def turning(event: _Event, step: Step) -> int:
    """Has as many iterations as it is told, writes a line in each, and keeps the last two."""

    async def turn(step: Step, number: int) -> Continue | Break:
        await step.do("count", lambda: number)
        line = f"turn {number}"
        await step.log.info(line)
        return Continue(number + 1) if number + 1 < event.payload else Break(number)

    last: int = await step.loop(
        "turns", turn, state=0, commit_interval=1, history_every=2, history_keep=2
    )
    return last


@workflow("flaky")
async def flaky(event: _Event, step: Step) -> str:
    """Fails in its first run, at its second step."""
    first = await step.do("first", lambda: "kept")

    def charge() -> str:
        if event.run_number == 0:
            raise NonRetryableError("no such card")
        return "charged"

    return first + await step.do("charge", charge, retries=Retry(limit=0))


@workflow("forgiving")
async def forgiving(event: _Event, step: Step) -> str:
    """Goes on after a step that fails; its last one ends when the file that it is told is there."""

    def fail() -> None:
        raise NonRetryableError("never mind")

    async def work() -> str:
        while not await asyncio.to_thread(Path(event.payload).exists):  # noqa: ASYNC110 (files do not call)
            await asyncio.sleep(0.02)
        return "worked"

    with contextlib.suppress(StepFailedError):
        await step.do("bad", fail, retries=Retry(limit=0))
    await step.do("fine", lambda: 1)
    return await step.do("work", work)


@workflow("slow")
async def slow(event: WorkflowEvent[float], step: Step) -> str:
    """Has a step that takes as many milliseconds as it is told."""

    async def work() -> str:
        await asyncio.sleep(event.payload / 1_000)
        return "worked"

    return await step.do("work", work)


@task("judge")
def judge(given: dict[str, Any]) -> dict[str, Any]:
    """Fails for good in its second branch, until there is a file."""
    if given["index"] == 1 and given["file"] and not Path(given["file"]).exists():
        raise NonRetryableError("out of order")
    return {"vote": given["index"]}


judged = GraphWorkflow(
    name="judged",
    initial_node_ref="start",
    nodes=[
        {"ref": "start", "task": "noop"},
        {
            "ref": "judge",
            "task": "judge",
            "input_mapping": {"index": "_branch.index", "file": "input.file"},
            "output_mapping": {"output.vote": "result.vote"},
        },
        {"ref": "ask", "subworkflow": "waiting"},
        {"ref": "tally", "task": "noop"},
    ],
    transitions=[
        {
            "ref": "out",
            "from_node_ref": "start",
            "to_node_ref": "judge",
            "sibling_group": "judges",
            "spawn_count": 2,
        },
        {"ref": "aside", "from_node_ref": "start", "to_node_ref": "ask"},
        {
            "ref": "in",
            "from_node_ref": "judge",
            "to_node_ref": "tally",
            "synchronization": {
                "strategy": "all",
                "sibling_group": "judges",
                "merge": {
                    "source": "_branch.output.vote",
                    "target": "state.votes",
                    "strategy": "append",
                },
            },
        },
    ],
    output_mapping={"votes": "state.votes"},
)


@task("cast")
async def cast(given: dict[str, Any]) -> dict[str, Any]:
    """Votes; who is `late` has to be asked again, and a `bad` one fails the run the first time."""
    if given["voter"] == "late":
        raise RuntimeError("not at home")
    if given["voter"] == "bad" and not await asyncio.to_thread(Path(given["file"]).exists):
        raise NonRetryableError("no such voter")
    return {"vote": given["voter"]}


voting = GraphWorkflow(
    name="voting",
    initial_node_ref="start",
    nodes=[
        {"ref": "start", "task": "noop"},
        {
            "ref": "vote",
            "task": "cast",
            "retries": {"limit": 3, "delay": "1 hour", "backoff": "constant"},
            "input_mapping": {"voter": "voter", "file": "input.file"},
            "output_mapping": {"output.vote": "result.vote"},
        },
        {"ref": "aside", "task": "noop"},
        {"ref": "count", "task": "noop"},
    ],
    transitions=[
        {
            "ref": "ask",
            "from_node_ref": "start",
            "to_node_ref": "vote",
            "sibling_group": "voters",
            "foreach": {"collection": "input.voters", "item_var": "voter"},
        },
        {
            "ref": "abstain",
            "from_node_ref": "vote",
            "to_node_ref": "aside",
            "priority": -1,
            "condition": "voter == 'nobody'",
        },
        {
            "ref": "meet",
            "from_node_ref": "vote",
            "to_node_ref": "count",
            "synchronization": {
                "strategy": "all",
                "sibling_group": "voters",
                "timeout_ms": 7_200_000,
                "merge": {
                    "source": "_branch.output.vote",
                    "target": "output.votes",
                    "strategy": "append",
                },
            },
        },
    ],
)


#: Its only node is a job, of a type of its own so that no other test takes it.
paying = GraphWorkflow(
    name="paying",
    initial_node_ref="pay",
    nodes=[
        {
            "ref": "pay",
            "task": "charge_card",
            "external": True,
            "input_mapping": {"amount": "input.amount", "first": "input.first"},
            "output_mapping": {"output.receipt": "result.receipt"},
            "retries": {"limit": 1, "delay": "1 second", "backoff": "constant"},
        }
    ],
    output_mapping={"receipt": "output.receipt"},
)

refunding = GraphWorkflow(
    name="refunding",
    initial_node_ref="pay",
    nodes=[{"ref": "pay", "task": "refund", "external": True, "timeout_ms": 600_000}],
)
