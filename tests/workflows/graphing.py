"""Graphs for tests of the engine: shapes, tasks, and a way to play them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from headwater import NonRetryableError, Task, WorkflowTest, task
from headwater.streams.harness.handles import TestInstance as Instance

Definition = dict[str, Any]
Scenario = Callable[[WorkflowTest, Instance], Awaitable[None]]


def graph(
    nodes: Iterable[Mapping[str, Any]], transitions: Iterable[Mapping[str, Any]], **more: object
) -> Definition:
    """A graph `g` that begins at its first node."""
    listed = list(nodes)
    begins = {"name": "g", "initialNodeRef": listed[0]["ref"]}
    return {**begins, "nodes": listed, "transitions": list(transitions), **more}


def node(ref: str, task: str = "noop", **more: object) -> dict[str, Any]:
    """A node."""
    return {"ref": ref, "task": task, **more}


def edge(begin: str, end: str, **more: object) -> dict[str, Any]:
    """A transition, named after its ends."""
    return {"ref": f"{begin}-{end}", "fromNodeRef": begin, "toNodeRef": end, **more}


def fan(strategy: str = "all", *, onto: str = "end", **synchronization: object) -> Definition:
    """start, a `work` for each of input.items, and `end` where they meet."""
    merge = {"source": "_branch.output.n", "target": "state.all", "strategy": "append"}
    return graph(
        [
            node("start"),
            node(
                "work",
                "work",
                inputMapping={"item": "item", "index": "_branch.index"},
                outputMapping={"output.n": "result.n"},
            ),
            node("end"),
        ],
        [
            edge(
                "start",
                "work",
                siblingGroup="group",
                foreach={"collection": "input.items", "itemVar": "item"},
            ),
            edge(
                "work",
                onto,
                synchronization={
                    "strategy": strategy,
                    "siblingGroup": "group",
                    "merge": merge,
                    **synchronization,
                },
            ),
        ],
        outputMapping={"all": "state.all"},
    )


class Flaky(Exception):
    """What a task raises that is to be tried again."""


def worker(test: list[WorkflowTest], calls: list[Any]) -> Task:
    """A task that gives its item doubled: an item may say that it takes time, fails, or both."""

    @task("work")
    async def work(given: dict[str, Any]) -> dict[str, Any]:
        item = given["item"]
        calls.append(item)
        if not isinstance(item, dict):
            return {"n": item * 2}
        if "takes" in item:
            await test[0].sleep(item["takes"])
        if calls.count(item) <= item.get("fails", 0):
            raise Flaky(f"item {item['n']}")
        if item.get("final"):
            raise NonRetryableError(f"item {item['n']} for good")
        return {"n": item["n"] * 2}

    return work


def play(
    definition: Definition,
    scenario: Scenario,
    params: object = None,
    *others: object,
    calls: list[Any] | None = None,
    tasks: Iterable[Task] = (),
) -> None:
    """Plays a scenario with an instance `i` of a graph, beside other workflows."""

    async def whole() -> None:
        world: list[WorkflowTest] = []
        work = worker(world, [] if calls is None else calls)
        async with WorkflowTest([definition, *others], tasks=[work, *tasks]) as test:
            world.append(test)
            instance = await test.create(definition["name"], id="i", params=params)
            await scenario(test, instance)

    asyncio.run(whole())


async def outcome(instance: Instance) -> tuple[str, Any, tuple[str, str] | None]:
    """Status, output and error of an instance."""
    status = await instance.status()
    error = (status.error.name, status.error.message) if status.error else None
    return status.status, status.output, error


async def statuses(instance: Instance, node_ref: str | None = None) -> list[str]:
    """The statuses of its tokens, of a node or of all."""
    tokens = (await instance.history()).tokens
    return [token.status for token in tokens if node_ref in {None, token.node_ref}]
