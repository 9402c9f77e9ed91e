"""Random graphs, results, failures, delays, crashes: the engine does what the naive model does."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from headwater import Limits, NonRetryableError, Task, WorkflowTest, task
from headwater.processors.graph.engine import GraphEngine
from headwater.processors.runs.limits import DEFAULT_LIMITS
from headwater.schemas.failures import CommandRefusedError
from headwater.streams.harness.handles import TestInstance as Instance
from headwater.streams.replay.host_port import ATTEMPT
from tests.fakes.drawn_graphs import EVENTS, INPUT, STRATEGIES, Blocks, works_or_waits
from tests.fakes.followed_graphs import followed
from tests.workflows.graphing import Definition

_TRIED = {"limit": 3, "delay": "2 seconds", "backoff": "constant"}
_HURRY = {"timeoutMs": 3_000}


def _does(draw: Random) -> dict[str, Any]:
    kind = draw.random()
    if kind < 0.1:
        return works_or_waits(draw)
    if kind < 0.2:
        return {"task": "work", "retries": _TRIED, **_HURRY}
    if kind < 0.3:
        return {"subworkflow": "child", "timeoutMs": draw.choice([1_000, 60_000])}
    return {"task": "work", "retries": _TRIED}


def tasks(draw: Random, world: list[WorkflowTest]) -> list[Task]:
    @task("work")
    async def work(given: dict[str, Any]) -> dict[str, Any]:
        if draw.random() < 0.5:
            await world[0].sleep(f"{draw.randint(1, 8_000)} ms")
        attempt = ATTEMPT.get()
        assert attempt is not None
        if draw.random() < 0.1:
            raise ConnectionError(str(given))
        if draw.random() < 0.005:
            raise NonRetryableError(str(given))
        return {"at": draw.choice([given, [given], {"a": given}, None])}

    return [work]


CHILD = {
    "name": "child",
    "initialNodeRef": "a",
    "nodes": [{"ref": "a", "task": "work", "outputMapping": {"output.at": "result.at"}}],
    "transitions": [],
}


async def _disturb(draw: Random, instance: Instance) -> None:
    """Events come, and operators pause the run and let it go on."""
    status = (await instance.status()).status
    if status in {"complete", "errored"}:
        return
    if draw.random() < 0.2:
        await instance.send_event(draw.choice(EVENTS), {"at": "event"})
        status = (await instance.status()).status
    if status == "paused":
        await instance.resume()
    elif draw.random() < 0.1 and status not in {"complete", "errored"}:
        await instance.pause()


async def _mend(
    draw: Random, test: WorkflowTest, instance: Instance, definition: Definition, groups: list[str]
) -> None:
    """An operator changes outputs, definition and limits of a run that has failed."""
    if groups and draw.random() < 0.5:
        with suppress(CommandRefusedError):
            await instance.set_branch_output(draw.choice(groups), draw.randrange(3), {"at": {}})
    if draw.random() < 0.3:
        definition["outputMapping"] = {"all": "output", "moved": "true"}
        await instance.migrate(definition)
    engine = test._engines["graph"]
    assert isinstance(engine, GraphEngine)
    engine._limits = draw.choice([DEFAULT_LIMITS, Limits(max_tokens=12), Limits(max_rounds=1)])


async def play(seed: int) -> str:
    """Plays a graph to its end, with crashes on the way; gives how it ended."""
    draw = Random(seed)
    blocks = Blocks(
        draw, STRATEGIES, _does, timeouts=True, tolerant=True, errors=True, limited=True
    )
    definition = blocks.document("g")
    groups = [way["siblingGroup"] for way in blocks.ways if "siblingGroup" in way]
    world: list[WorkflowTest] = []
    async with WorkflowTest([definition, CHILD], tasks=tasks(draw, world)) as test:
        world.append(test)
        instance = await test.create("g", id="i", params=INPUT)
        for _ in range(60):
            if draw.random() < 0.3:
                await test.crash()
            await _disturb(draw, instance)
            await test.advance(draw.choice(["1 second", "7 seconds", "1 minute", "2 hours"]))
            status = (await instance.status()).status
            if status == "errored" and draw.random() < 0.5:
                await _mend(draw, test, instance, definition, groups)
                await instance.retry()
            elif status in {"complete", "errored"}:
                break
        if status == "paused":
            await instance.resume()
        await test.advance("1 day")
        status = (await instance.status()).status
        followed(test.records("g", "i"))
        return status


@pytest.mark.parametrize("block", range(4))
def test_a_drawn_graph_does_what_the_naive_model_does(block: int):
    ends = [asyncio.run(play(seed)) for seed in range(block, 48, 4)]
    assert set(ends) <= {"complete", "errored"}


@pytest.mark.soak
def test_thousands_of_drawn_graphs_do_what_the_naive_model_does():
    for seed in range(3_000):
        assert asyncio.run(play(seed)) in {"complete", "errored"}, seed
