"""A run of another kind: the counter in the harness, beside code and as its child."""

import asyncio
from collections.abc import Awaitable, Callable

from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.history import StartRun
from tests.fakes.counter import CounterEngine

KINDS = {"count": CounterEngine.kind}


@workflow("adds")
async def adds(event: WorkflowEvent, step: Step) -> object:
    for number in range(3):
        await step.do(f"tell {number}", lambda tx: tx.send_event("count", "c-1", "add", 1))
    return "told"


def play(scenario: Callable[[WorkflowTest], Awaitable[None]], *workflows: object) -> None:
    async def whole() -> None:
        test = WorkflowTest(workflows, engines=[CounterEngine()], kinds=KINDS)
        async with test:
            await scenario(test)

    asyncio.run(whole())


def test_a_counter_ends_at_its_number_whatever_crashes_on_the_way():
    async def scenario(test: WorkflowTest) -> None:
        counter = await test.create("count", id="c-1", params={"to": 3})
        for number in range(3):
            assert (await counter.status()).status == "waiting"
            await counter.send_event("add", 1)
            await test.run_until_idle()
            if number == 1:
                await test.crash()
        status = await counter.status()
        assert (status.status, status.output) == ("complete", 3)
        history = await counter.history()
        assert [line.message for line in history.logs] == [f"now at {n}" for n in (1, 2, 3)]
        assert len(history.events) == 3
        assert history.steps == []

    play(scenario)


def test_time_ends_a_counter():
    async def scenario(test: WorkflowTest) -> None:
        counter = await test.create("count", id="c-1", params={"to": 3, "within_ms": 60_000})
        await counter.send_event("add", 2)
        await test.advance("59 seconds")
        assert (await counter.status()).status == "waiting"
        await test.crash()
        await test.advance("2 seconds")
        status = await counter.status()
        assert (status.status, status.error.name) == ("errored", "TooSlow")
        assert status.error.message == "at 2 when time was up"

    play(scenario)


def test_a_counter_is_paused_resumed_and_restarted_as_every_run():
    async def scenario(test: WorkflowTest) -> None:
        counter = await test.create("count", id="c-1", params={"to": 2})
        await counter.pause()
        assert (await counter.status()).status == "paused"
        await counter.send_event("add", 1)
        await counter.resume()
        assert (await counter.status()).status == "waiting"
        await counter.restart()
        await counter.send_event("add", 1)
        assert (await counter.status()).status == "waiting", "the second run counts from nothing"
        await counter.send_event("add", 1)
        status = await counter.status()
        assert (status.status, status.run_number) == ("complete", 1)

    play(scenario)


def test_workflows_of_code_tell_a_counter_to_add():
    async def scenario(test: WorkflowTest) -> None:
        counter = await test.create("count", id="c-1", params={"to": 3})
        reported = await test.create("adds", id="a-1")
        await test.run_until_idle()
        assert (await reported.status()).output == "told"
        assert (await counter.status()).output == 3

    play(scenario, adds)


def test_a_counter_is_evicted_and_comes_back_with_its_total():
    async def scenario(test: WorkflowTest) -> None:
        counter = await test.create("count", id="c-1", params={"to": 3, "within_ms": 60_000})
        await counter.send_event("add", 2)
        await test.run_until_idle()
        owner = test._owner
        driven = test._partition
        assert owner.evict(test.now_ms + 1, driven.acknowledged, driven.position) == 1
        stored = owner.instances.store.get("count/c-1")
        assert stored
        assert (stored.kind, stored.format) == ("counter", 1)
        assert stored.wake_at_ms == test.now_ms + 60_000
        await counter.send_event("add", 1)
        assert (await counter.status()).output == 3

    play(scenario)


def test_nobody_starts_a_workflow_of_another_kind_than_it_is():
    async def scenario(test: WorkflowTest) -> None:
        reply = await test.send("count", "c-1", StartRun('{"to": 1}', kind="replay"))
        assert reply.code == "WORKFLOW_NOT_FOUND"
        reply = await test.send("count", "c-1", StartRun('{"to": 1}', kind="counter"))
        assert reply.code == ""

    play(scenario)
