"""Paused graphs: nothing of them ends, and what came due is decided by its times at resume."""

import asyncio
from typing import Any

import pytest

from headwater import JobLeaseLostError, WorkflowTest
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, fan, graph, node, outcome, play, statuses

SLOW = {"n": 5, "takes": "10 seconds"}
LATER = {"n": 7, "takes": "20 seconds"}


async def traced_the_same(instance: Instance) -> None:
    assert [entry.same async for entry in instance.trace()].count(False) == 0


@pytest.mark.parametrize("ends", ["completes", "fails"])
def test_nothing_of_a_paused_run_completes_or_fails(ends: str):
    definition = graph([node("start", "work", inputMapping={"item": "input"})], [])
    item = SLOW if ends == "completes" else {**SLOW, "final": True}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("2 hours")
        assert (await instance.status()).status == "paused"
        assert await statuses(instance) in (["dispatched"], ["executing"])
        (token,) = (await instance.introspect_tokens()).tokens
        assert token.waits_for.what == "resume"
        await test.crash()
        await test.advance("1 hour")
        assert (await instance.status()).status == "paused"
        await instance.resume()
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        if ends == "completes":
            assert (status, error) == ("complete", None)
        else:
            assert (status, error) == ("errored", ("NonRetryableError", "item 5 for good"))
        await traced_the_same(instance)

    calls: list[Any] = []
    play(definition, scenario, item, calls=calls)
    assert len(calls) == 1


def test_an_arrival_after_the_deadline_is_late_also_while_paused():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("1 second")
        await instance.pause()
        await test.advance("1 minute")
        await instance.resume()
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "SynchronizationTimeoutError")
        await traced_the_same(instance)

    play(fan(timeoutMs=5_000), scenario, {"items": [1, SLOW]})


def test_an_arrival_before_the_deadline_is_in_time_however_long_the_pause_is():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("1 second")
        await instance.pause()
        await test.advance("1 minute")
        await instance.resume()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [2, 10]}, None)
        await traced_the_same(instance)

    play(fan(timeoutMs=10_000), scenario, {"items": [1, SLOW]})


def test_the_timeout_of_a_join_counts_from_an_arrival_in_the_pause():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("1 second")
        await instance.pause()
        await test.advance("1 minute")
        await instance.resume()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [10]}, None)
        await traced_the_same(instance)

    join = {"timeoutMs": 5_000, "onTimeout": "proceed_with_available"}
    play(fan(**join), scenario, {"items": [SLOW, LATER]})


def test_the_first_of_a_pause_wins_whatever_arrived_first_at_the_log():
    definition = fan("any")
    definition["nodes"].append({"ref": "ev", "event": {"type": "x"}})
    definition["nodes"].append({"ref": "after", "event": {"type": "x"}})
    definition["nodes"].append(node("begin"))
    definition["initialNodeRef"] = "begin"
    definition["transitions"] += [edge("begin", "start"), edge("begin", "after")]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("1 second")
        await instance.pause()
        await test.advance("15 seconds")
        await instance.send_event("x", 1)
        await test.advance("1 minute")
        assert await statuses(instance, "after") == ["waiting_for_event"]
        await instance.resume()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [10]}, None)
        assert await statuses(instance, "after") == ["completed"]
        await traced_the_same(instance)

    play(definition, scenario, {"items": [SLOW, LATER]})


def test_an_event_for_a_branch_that_ended_before_is_kept_for_another_node():
    join = {"strategy": "any", "siblingGroup": "g"}
    definition = graph(
        [
            node("start"),
            node("work", "work", inputMapping={"item": "input"}),
            {"ref": "ev", "event": {"type": "x"}},
            node("end"),
            {"ref": "after", "event": {"type": "x"}},
        ],
        [
            edge("start", "work", siblingGroup="g"),
            edge("start", "ev", siblingGroup="g"),
            edge("work", "end", synchronization=join),
            edge("ev", "end", synchronization=join),
            edge("end", "after"),
        ],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("15 seconds")
        await instance.send_event("x", 1)
        await test.advance("1 minute")
        await instance.resume()
        await test.run_until_idle()
        assert (await instance.status()).status == "complete"
        assert await statuses(instance, "ev") == ["cancelled"]
        assert await statuses(instance, "after") == ["completed"]
        await traced_the_same(instance)

    play(definition, scenario, SLOW)


def test_an_event_after_the_deadline_is_late_also_while_paused():
    definition = graph(
        [{"ref": "ev", "event": {"type": "x", "timeoutMs": 5_000}}, node("end")],
        [edge("ev", "end", on="error")],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("5001 ms")
        await instance.send_event("x", 1)
        await instance.resume()
        await test.run_until_idle()
        assert await statuses(instance) == ["timed_out", "completed"]
        in_time = await test.create("g", id="in-time")
        await test.run_until_idle()
        await in_time.pause()
        await test.advance("5 seconds")
        await in_time.send_event("x", 1)
        await test.advance("1 minute")
        await in_time.resume()
        await test.run_until_idle()
        assert await statuses(in_time) == ["completed"]
        await traced_the_same(in_time)

    play(definition, scenario)


def test_children_of_a_paused_run_end_and_it_learns_of_it_afterwards():
    child = graph([{"ref": "cool", "wait": {"durationMs": 5_000}}], [], name="child")
    definition = graph([{"ref": "start", "subworkflow": "child", "timeoutMs": 10_000}], [])

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("1 minute")
        assert await statuses(instance) == ["waiting_for_subworkflow"]
        await instance.resume()
        await test.run_until_idle()
        assert (await instance.status()).status == "complete"
        await traced_the_same(instance)

    play(definition, scenario, None, child)


def test_a_child_that_ends_too_late_in_a_pause_has_timed_out():
    child = graph([{"ref": "cool", "wait": {"durationMs": 15_000}}], [], name="child")
    definition = graph([{"ref": "start", "subworkflow": "child", "timeoutMs": 10_000}], [])

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("1 minute")
        assert (await instance.status()).status == "paused"
        await instance.resume()
        await test.run_until_idle()
        assert await statuses(instance) == ["timed_out"]
        await traced_the_same(instance)

    play(definition, scenario, None, child)


def test_a_job_may_end_in_a_pause_and_its_lease_may_run_out():
    definition = graph(
        [node("start"), node("a", "job", external=True), node("b", "job", external=True)],
        [edge("start", "a"), edge("start", "b")],
    )

    async def whole() -> None:
        async with WorkflowTest([definition]) as test:
            instance = await test.create("g", id="i")
            await test.run_until_idle()
            done, lost = await test.activate_jobs("job", max=2, lease="10 seconds")
            await instance.pause()
            await done.complete({"n": 1})
            await done.complete({"n": 1})
            await test.advance("11 seconds")
            with pytest.raises(JobLeaseLostError):
                await lost.complete({})
            assert await statuses(instance) == ["completed", "executing", "executing"]
            await instance.resume()
            await test.run_until_idle()
            assert await statuses(instance) == ["completed", "completed", "dispatched"]
            (again,) = await test.activate_jobs("job")
            assert again.attempt == 2
            await again.complete({})
            await test.run_until_idle()
            assert (await instance.status()).status == "complete"
            await traced_the_same(instance)

    asyncio.run(whole())


def test_a_run_is_over_in_a_pause_when_its_time_is_over_and_not_later():
    definition = graph([node("start", "work", inputMapping={"item": "input"})], [], timeoutMs=5_000)

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("1 minute")
        assert (await instance.status()).status == "paused"
        await instance.resume()
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "RunTimeoutError")

    play(definition, scenario, SLOW)


def test_a_retry_of_an_attempt_that_failed_in_a_pause_comes_when_it_is_due():
    definition = graph(
        [
            node(
                "start",
                "work",
                inputMapping={"item": "input"},
                retries={"limit": 1, "delay": "30 seconds"},
            )
        ],
        [],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("20 seconds")
        await instance.resume()
        await test.run_until_idle()
        assert (await instance.status()).status == "waiting"
        await test.advance("19 seconds")
        assert len(calls) == 1
        await test.advance("1 second")
        assert len(calls) == 2

    calls: list[Any] = []
    play(definition, scenario, {**SLOW, "fails": 1}, calls=calls)


def test_many_outcomes_of_a_pause_take_effect_in_several_decisions():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("1 minute")
        await instance.resume()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [10] * 350}, None)
        records = test.records("g", "i")
        held = [len(record.events) for record in records[-8:]]
        assert max(held) < 1_000
        await traced_the_same(instance)

    play(fan(), scenario, {"items": [SLOW] * 350})


def test_a_sleep_ends_before_an_event_that_was_sent_after_its_end():
    join = {"strategy": "any", "siblingGroup": "g"}
    definition = graph(
        [
            node("start"),
            {
                "ref": "cool",
                "wait": {"durationMs": 5_000},
                "outputMapping": {"state.first": "'cool'"},
            },
            {"ref": "ev", "event": {"type": "x"}, "outputMapping": {"state.first": "'ev'"}},
            node("end"),
        ],
        [
            edge("start", "cool", siblingGroup="g"),
            edge("start", "ev", siblingGroup="g"),
            edge("cool", "end", synchronization=join),
            edge("ev", "end", synchronization=join),
        ],
        outputMapping={"first": "state.first"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("6 seconds")
        await instance.send_event("x", 1)
        await instance.resume()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"first": "cool"}, None)
        await traced_the_same(instance)

    play(definition, scenario)
