"""`WorkflowTest` itself: ticks, time, crashes and seeds."""

import asyncio
import re
from dataclasses import dataclass, field

import pytest

from headwater import InstanceFailedError, Step, StepTx, WorkflowEvent, WorkflowTest, task, workflow
from tests.workflows.running import (
    HOUR,
    MINUTE,
    START,
    Calls,
    begin,
    entry_at,
    output_of,
    pass_time,
    run,
    state_of,
)


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> object:
    """Waits for an event unless it is told to hurry."""
    await step.do("quote", lambda: 1)
    if event.payload == "hurry":
        return "hurried"
    return (await step.wait_for_event("go", type="go", timeout="1 day")).payload


def test_a_tick_takes_as_many_instances_as_it_may_and_says_how_many():
    async def scenario(test: WorkflowTest) -> None:
        for number in range(3):
            await test.create("order", id=f"i-{number}", params="hurry")
        assert await test.tick(max_instances=2) == 2
        states = [await state_of(test.get("order", f"i-{number}")) for number in range(3)]
        assert sorted(states) == ["active", "complete", "complete"]
        assert await test.tick(max_instances=2) == 1
        assert await test.tick(max_instances=2) == 0

    run(scenario, order)


def test_one_tick_takes_an_instance_until_it_waits_or_ends():
    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1")
        assert await test.tick(max_instances=1) == 1
        assert await state_of(instance) == "waiting"
        assert await test.tick(max_instances=1) == 0
        await instance.send_event("go", "on")
        assert await test.tick(max_instances=1) == 1
        assert await output_of(instance) == "on"

    run(scenario, order)


def test_an_instance_that_wakes_goes_before_a_new_one():
    async def scenario(test: WorkflowTest) -> None:
        waiting = await begin(test, instance="waiting")
        new = await test.create("order", id="new", params="hurry")
        await waiting.send_event("go", "on")
        assert await test.tick(max_instances=1) == 1
        assert [await state_of(waiting), await state_of(new)] == ["complete", "active"]

    run(scenario, order)


def test_an_instance_that_resumes_goes_before_a_new_one():
    async def scenario(test: WorkflowTest) -> None:
        paused = await begin(test, instance="paused")
        await paused.pause()
        await test.run_until_idle()
        await paused.send_event("go", "on")
        new = await test.create("order", id="new", params="hurry")
        await paused.resume()
        assert await test.tick(max_instances=1) == 1
        assert [await state_of(paused), await state_of(new)] == ["complete", "active"]

    run(scenario, order)


def test_running_until_idle_takes_no_time():
    @workflow("napper")
    async def napper(event: WorkflowEvent, step: Step) -> object:
        await step.sleep("nap", 1)
        return await step.now() == START + MINUTE

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "napper")
        for _ in range(3):
            await test.run_until_idle()
        assert await state_of(instance) == "waiting"

    run(scenario, napper)


def test_advancing_passes_through_every_due_time_in_order():
    woken: list[tuple[str, object]] = []

    @workflow("napper")
    async def napper(event: WorkflowEvent, step: Step) -> None:
        for number in range(2):
            await step.sleep(f"nap {number}", event.payload)
            woken.append((event.instance_id, await step.now() - START))

    async def scenario(test: WorkflowTest) -> None:
        for instance, nap in (("three", "3 hours"), ("one", "1 hour"), ("five", "5 hours")):
            await test.create("napper", id=instance, params=nap)
        await test.run_until_idle()
        await test.advance("1 day")
        assert woken == [
            ("one", HOUR),
            ("one", 2 * HOUR),
            ("three", 3 * HOUR),
            ("five", 5 * HOUR),
            ("three", 6 * HOUR),
            ("five", 10 * HOUR),
        ]

    run(scenario, napper)


def test_advancing_in_small_steps_or_one_large_comes_to_the_same():
    @workflow("napper")
    async def napper(event: WorkflowEvent, step: Step) -> object:
        moments = []
        for number in range(3):
            await step.sleep(f"nap {number}", "7 minutes")
            moments.append((await step.now()).isoformat())
        return moments

    outputs: list[object] = []

    async def small(test: WorkflowTest) -> None:
        instance = await begin(test, "napper")
        for _ in range(30):
            await test.advance("1 minute")
        outputs.append(await output_of(instance))

    async def large(test: WorkflowTest) -> None:
        instance = await begin(test, "napper")
        await test.advance("30 minutes")
        outputs.append(await output_of(instance))

    run(small, napper)
    run(large, napper)
    assert outputs[0] == outputs[1]


def test_a_callback_may_take_virtual_time():
    async def slow() -> str:
        await pass_time("1 minute")
        return "done"

    @workflow("slow")
    async def slow_order(event: WorkflowEvent, step: Step) -> object:
        result = await step.do("work", slow)
        return [result, await step.now() == START + MINUTE]

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "slow")
        await test.advance("59 seconds")
        assert await state_of(instance) not in ("complete", "errored")
        await test.advance("1 second")
        assert await output_of(instance) == ["done", True]

    run(scenario, slow_order)


def test_a_slow_callback_does_not_hold_up_other_instances():
    @workflow("slow")
    async def slow_order(event: WorkflowEvent, step: Step) -> None:
        await step.do("work", lambda: pass_time("1 hour"))

    async def scenario(test: WorkflowTest) -> None:
        await test.create("slow", id="slow")
        quick = await test.create("order", id="quick", params="hurry")
        await test.run_until_idle()
        assert await output_of(quick) == "hurried"

    run(scenario, slow_order, order)


def test_a_crash_leaves_what_the_log_says():
    async def scenario(test: WorkflowTest) -> None:
        done = await begin(test, instance="done", params="hurry")
        waiting = await begin(test, instance="waiting")
        await test.crash()
        assert await output_of(done) == "hurried"
        assert await state_of(waiting) == "waiting"
        await waiting.send_event("go", "on")
        await test.crash()
        await test.run_until_idle()
        assert await output_of(test.get("order", "waiting")) == "on"

    run(scenario, order)


def test_an_instance_that_was_created_but_not_run_survives_a_crash():
    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("order", id="i-1", params="hurry")
        await test.crash()
        await test.run_until_idle()
        assert await output_of(instance) == "hurried"

    run(scenario, order)


def test_a_crash_during_a_callback_in_virtual_time_leaves_nothing_of_it():
    calls = Calls()

    async def work() -> int:
        calls.names.append("begun")
        attempt = len(calls.names)
        if attempt == 1:
            await pass_time("1 minute")
            calls.names.append("finished")
        return attempt

    @workflow("slow")
    async def slow_order(event: WorkflowEvent, step: Step) -> object:
        return await step.do("work", work)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "slow")
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) == 2
        assert calls.names == ["begun", "begun"]

    run(scenario, slow_order)


def test_a_crash_while_a_run_is_in_flight_cancels_its_callback():
    calls = Calls()
    fates: list[str] = []

    @workflow("slow")
    async def slow_order(event: WorkflowEvent, step: Step) -> object:
        async def work() -> int:
            calls.names.append("begun")
            if len(calls.names) == 1:
                entered.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    fates.append("cancelled")
            return len(calls.names)

        return await step.do("work", work)

    entered = asyncio.Event()

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("slow", id="i-1")
        flight = asyncio.create_task(test.run_until_idle())
        await asyncio.wait_for(entered.wait(), timeout=60)
        await test.crash()
        assert fates == ["cancelled"]
        flight.cancel()
        await asyncio.gather(flight, return_exceptions=True)
        await test.advance("1 hour")
        assert await output_of(instance) == 2

    run(scenario, slow_order)


def test_a_crash_while_the_clock_is_moved_makes_nothing_late():
    entered = asyncio.Event()

    @workflow("slow")
    async def slow_order(event: WorkflowEvent, step: Step) -> object:
        async def work() -> None:
            if not entered.is_set():
                entered.set()
                await asyncio.Event().wait()

        await step.sleep("first", "1 minute")
        await step.do("work", work)
        await step.sleep("second", "1 minute")
        return (await step.now()).isoformat()

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test, "slow")
        moving = asyncio.create_task(test.advance("1 hour"))
        await asyncio.wait_for(entered.wait(), timeout=60)
        await test.crash()
        await moving
        assert await output_of(instance) == "2026-01-01T00:02:00+00:00"
        assert (await entry_at(instance, "work")).attempts == 1

    run(scenario, slow_order)


def test_a_batch_skips_ids_that_exist_and_leaves_them_out_of_the_answer():
    async def scenario(test: WorkflowTest) -> None:
        await begin(test, instance="b")
        created = await test.create_batch(
            "order",
            [
                {"id": "a", "params": "hurry"},
                {"id": "b", "params": "hurry"},
                {"id": "c"},
                {"id": "a"},
            ],
        )
        assert [instance.id for instance in created] == ["a", "c"]
        await test.run_until_idle()
        assert await output_of(created[0]) == "hurried"
        assert await state_of(test.get("order", "b")) == "waiting"
        assert await state_of(created[1]) == "waiting"

    run(scenario, order)


def drawn(seed: int) -> list[str]:
    """The id of an instance that was given none, and what its workflow draws."""
    result: list[str] = []

    @workflow("draws")
    async def draws(event: WorkflowEvent, step: Step) -> object:
        return [await step.uuid(), repr(await step.random())]

    async def scenario(test: WorkflowTest) -> None:
        instance = await test.create("draws")
        await test.run_until_idle()
        result.extend([instance.id, *await output_of(instance)])

    run(scenario, draws, seed=seed)
    return result


def test_equal_seeds_give_equal_ids_and_values_and_other_seeds_give_other_values():
    first, again, other = drawn(7), drawn(7), drawn(8)
    assert first == again
    assert not set(first[1:]) & set(other[1:])


def test_ids_that_the_harness_makes_are_valid_and_different():
    async def scenario(test: WorkflowTest) -> None:
        ids = [(await test.create("order")).id for _ in range(20)]
        assert len(set(ids)) == 20
        assert all(re.fullmatch(r"[a-zA-Z0-9_][a-zA-Z0-9_-]{0,99}", item) for item in ids)

    run(scenario, order)


def test_the_clock_begins_where_the_test_says():
    @workflow("clock")
    async def clock(event: WorkflowEvent, step: Step) -> object:
        return (await step.now()).isoformat()

    async def whole() -> None:
        async with WorkflowTest([clock], seed=1, start="2031-05-06T07:08:09Z") as test:
            instance = await begin(test, "clock")
            assert await output_of(instance) == "2031-05-06T07:08:09+00:00"

    asyncio.run(whole())


def test_two_harnesses_at_once_share_nothing():
    async def whole() -> None:
        async with (
            WorkflowTest([order], seed=1, start="2026-01-01T00:00:00Z") as left,
            WorkflowTest([order], seed=1, start="2026-01-01T00:00:00Z") as right,
        ):
            mine, theirs = await begin(left), await begin(right)
            await mine.send_event("go", "mine")
            await left.advance("2 days")
            await right.run_until_idle()
            assert await output_of(mine) == "mine"
            assert await state_of(theirs) == "waiting"

    asyncio.run(whole())


def test_many_instances_run_side_by_side():
    @workflow("ten")
    async def ten(event: WorkflowEvent, step: Step) -> int:
        total = 0
        for number in range(10):
            total += await step.do(f"step {number}", lambda number=number: number)
        return total

    async def scenario(test: WorkflowTest) -> None:
        batch = [{"id": f"i-{number}"} for number in range(200)]
        for begin_at in range(0, 200, 100):
            await test.create_batch("ten", batch[begin_at : begin_at + 100])
        await test.run_until_idle()
        for item in batch:
            assert await output_of(test.get("ten", item["id"])) == 45

    run(scenario, ten)


def test_a_result_is_the_output_or_says_why_there_is_none():
    @workflow("fails")
    async def fails(event: WorkflowEvent, step: Step) -> None:
        raise ValueError(event.payload)

    async def scenario(test: WorkflowTest) -> None:
        hurried = await test.workflow(order).create(params="hurry")
        assert await hurried.result() == "hurried"
        waiting = await test.create(order, id="i-1")
        with pytest.raises(TimeoutError, match="order/i-1 to end, found it waiting at wait_for_ev"):
            await waiting.result()
        await waiting.send_event("go", "on")
        assert await test.workflow("order").get("i-1").result() == "on"
        failed = await test.create(fails, params="no")
        with pytest.raises(InstanceFailedError, match="found it errored: ValueError: no"):
            await failed.result()
        ended = await test.create(order)
        await ended.terminate()
        with pytest.raises(InstanceFailedError, match=r"found it terminated$"):
            await ended.result()

    run(scenario, order, fails)


@dataclass
class Letter:
    to: str
    copies: list[str] = field(default_factory=list)


def test_params_may_be_an_object_of_the_type_that_a_workflow_declares():
    @workflow("send")
    async def send(event: WorkflowEvent[Letter], step: Step) -> object:
        return [event.payload.to, *event.payload.copies]

    @workflow("parent")
    async def parent(event: WorkflowEvent, step: Step) -> object:
        def also(tx: StepTx) -> None:
            tx.create_workflow(send, id="by-tx", params=Letter("bo"))

        await step.do("also", also)
        return await step.run_workflow("child", send, params=Letter("amara", ["bo"]))

    async def scenario(test: WorkflowTest) -> None:
        made = await test.workflow(send).create_batch([{"id": "one", "params": Letter("bo")}])
        assert await made[0].result() == ["bo"]
        assert await (await test.create(parent)).result() == ["amara", "bo"]
        assert await test.get(send, "by-tx").result() == ["bo"]

    run(scenario, send, parent)


@pytest.mark.parametrize("together", [True, False])
def test_a_tick_begins_as_many_steps_as_it_may(together: bool):
    called: list[str] = []

    @workflow("order")
    async def order(event: WorkflowEvent[str], step: Step) -> int:
        name = event.payload
        steps = [step.do(f"{n}", lambda n=n: called.append(f"{name}{n}")) for n in range(3)]
        if together:
            await asyncio.gather(*steps)
        else:
            for item in steps:
                await item
        return len(steps)

    async def scenario(test: WorkflowTest) -> None:
        made = [await test.create("order", id=name, params=name) for name in "ab"]
        for steps in range(1, 6):
            assert await test.tick(max_steps=1) >= 1
            assert len(called) == steps
            assert {(await item.status()).status for item in made} <= {"active", "complete"}
        assert await test.tick(max_steps=10) == 1
        assert sorted(called) == ["a0", "a1", "a2", "b0", "b1", "b2"], "each step was called once"
        assert [await output_of(item) for item in made] == [3, 3]

    run(scenario, order)


def test_a_tick_begins_as_many_tasks_as_it_may():
    called: list[int] = []

    @task("note")
    def note(given: object) -> dict[str, object]:
        called.append(1)
        return {}

    definition = {
        "name": "fan",
        "initialNodeRef": "start",
        "nodes": [{"ref": "start", "task": "noop"}, {"ref": "each", "task": "note"}],
        "transitions": [
            {
                "ref": "t",
                "fromNodeRef": "start",
                "toNodeRef": "each",
                "priority": 1,
                "siblingGroup": "g",
                "spawnCount": 4,
            }
        ],
    }

    async def scenario() -> None:
        async with WorkflowTest([definition], tasks=[note]) as test:
            instance = await test.create("fan")
            for expected in (0, 2, 4):
                await test.tick(max_steps=1 if expected == 0 else 2)
                assert len(called) == expected
            assert (await instance.status()).status == "complete"

    asyncio.run(scenario())
