"""Graphs in which several features meet: failed merges, tolerance, limits, waits, retries."""

from typing import Any

import pytest

from headwater import Limits, Task, WorkflowTest, task
from headwater.processors.graph.engine import GraphEngine
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import Scenario, edge, graph, node, outcome, play, statuses

#: A merge that fails for a branch whose `output.v` is a number.
OBJECTS = {"source": "_branch.output.v", "target": "state.v", "strategy": "merge_object"}
LATE = {"n": 1, "takes": "1 hour"}


def joins(group: str, strategy: str = "all", **more: object) -> dict[str, Any]:
    return {"synchronization": {"strategy": strategy, "siblingGroup": group, **more}}


async def decided_the_same(instance: Instance) -> None:
    assert [entry.same async for entry in instance.trace()].count(False) == 0


# -- failed merges


def test_a_merge_that_fails_where_an_outer_join_continues_at_once_ends_with_its_fork():
    inner = node("inner", outputMapping={"output.v": "5"})
    definition = graph(
        [node("start"), node("outer"), inner, node("merge"), node("first"), node("repair")],
        [
            edge("start", "outer", siblingGroup="O", spawnCount=1),
            edge("outer", "inner", siblingGroup="I", spawnCount=1),
            edge("inner", "merge", **joins("I", merge=OBJECTS)),
            edge("inner", "first", **joins("O", "any")),
            edge("merge", "repair", on="error"),
        ],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {}, None)
        assert await statuses(instance, "merge") == ["completed", "cancelled"]
        assert await statuses(instance, "repair") == []
        await decided_the_same(instance)

    play(definition, scenario)


def test_a_merge_that_fails_in_a_branch_which_may_fail_ends_that_branch():
    inner = node("inner", outputMapping={"output.v": "5"})
    ends = joins("O", onBranchFailure="tolerate")
    definition = graph(
        [
            node("start"),
            node("outer"),
            inner,
            node("merge"),
            node("end", outputMapping={"output.failed": "_branch.failed"}),
        ],
        [
            edge("start", "outer", siblingGroup="O", spawnCount=2),
            edge("outer", "inner", siblingGroup="I", spawnCount=2, condition="_branch.index == 0"),
            edge("outer", "end", priority=1, **ends),
            edge("inner", "merge", **joins("I", merge=OBJECTS)),
            edge("merge", "end", **ends),
        ],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"failed": 1}, None)
        assert await statuses(instance, "merge") == ["completed", "completed", "failed"]
        await decided_the_same(instance)

    play(definition, scenario)


def allow(test: WorkflowTest, **limits: int) -> None:
    """Let retries have other limits, as the settings of a new worker would."""
    engine = test._engines["graph"]
    assert isinstance(engine, GraphEngine)
    engine._limits = Limits(**limits)


def test_a_retry_evaluates_a_failed_merge_again_whose_error_could_not_be_followed():
    received: list[Any] = []

    @task("look")
    async def look(given: dict[str, Any]) -> dict[str, Any]:
        received.append(given)
        return {}

    definition = graph(
        [
            node("start"),
            node("vote", outputMapping={"output.v": "5"}),
            node("merge", "look", inputMapping={"v": "state.v"}),
            node("repair"),
        ],
        [
            edge("start", "vote", siblingGroup="A", spawnCount=2),
            edge("vote", "merge", **joins("A", merge=OBJECTS)),
            edge("merge", "repair", on="error"),
        ],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        # start, two votes, their two arrivals, the join: there is no token left for `repair`.
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "TokenLimitError")
        assert await statuses(instance, "merge") == ["cancelled", "cancelled"]
        await decided_the_same(instance)
        for branch in (0, 1):
            await instance.set_branch_output("A", branch, {"v": {str(branch): True}})
        allow(test)
        await instance.retry()
        await test.run_until_idle()
        assert (await outcome(instance))[0] == "complete"
        assert received == [{"v": {"0": True, "1": True}}]

    play_limited(definition, scenario, 6, look)


def play_limited(definition: dict[str, Any], scenario: Scenario, most: int, *tasks: Task) -> None:
    async def limited(test: WorkflowTest, instance: Instance) -> None:
        allow(test, max_tokens=most)
        await instance.restart()
        await scenario(test, instance)

    play(definition, limited, {"items": [1, LATE]}, tasks=tasks)


# -- limits


def test_a_retry_continues_at_a_join_that_timed_out_at_the_limit_of_tokens():
    definition = graph(
        [
            node("start"),
            node("work", "work", inputMapping={"item": "input.items[_branch.index]"}),
            node("join", outputMapping={"output.joined": "true"}),
        ],
        [
            edge("start", "work", siblingGroup="A", spawnCount=2),
            edge(
                "work",
                "join",
                **joins("A", timeoutMs=1_000, onTimeout="proceed_with_available"),
            ),
        ],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("5 seconds")
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "TokenLimitError")
        allow(test)
        await instance.retry()
        await test.run_until_idle()
        await test.advance("2 seconds")
        assert await outcome(instance) == ("complete", {"joined": True}, None)

    play_limited(definition, scenario, 4)


def test_a_retry_with_a_lower_limit_of_tokens_ends_those_that_it_has():
    work = node("work", "work", inputMapping={"item": "input"})
    definition = graph([node("start"), work], [edge("start", "work")])

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await outcome(instance))[0] == "errored"
        allow(test, max_tokens=1)
        await instance.retry()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {}, None)

    play(definition, scenario, {"n": 1, "fails": 1})


def test_a_default_of_the_state_with_an_integer_beyond_64_bits_is_refused():
    schema = {"properties": {"n": {"properties": {"deep": {"default": [2**64]}}}}}
    with pytest.raises(ValueError, match=r"state\.n\.deep\[0\]: expected an integer of at most 64"):
        WorkflowTest([graph([node("start")], [], contextSchema=schema)])


# -- pauses


def test_a_run_that_completed_in_a_pause_before_its_timeout_is_complete():
    definition = graph([node("work", "work", inputMapping={"item": "input"})], [], timeoutMs=5_000)

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("1 minute")
        await test.crash()
        await instance.resume()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {}, None)
        await decided_the_same(instance)

    play(definition, scenario, {"n": 1, "takes": "3 seconds"})


def test_events_of_cancelled_waits_are_there_again_in_their_order():
    awaited = {"event": {"type": "x"}}
    any_of = joins("A", "any")
    definition = graph(
        [
            node("start"),
            {"ref": "waits", **awaited},
            node("work", "work", inputMapping={"item": "input"}),
            node("join"),
            {"ref": "first", **awaited, "outputMapping": {"output.first": "result.payload"}},
            {"ref": "second", **awaited, "outputMapping": {"output.second": "result.payload"}},
        ],
        [
            edge("start", "waits", siblingGroup="A", spawnCount=2),
            edge("start", "work", siblingGroup="A"),
            edge("waits", "join", **any_of),
            edge("work", "join", **any_of),
            edge("join", "first"),
            edge("first", "second"),
        ],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("2 seconds")
        for payload in (1, 2, 3):
            await instance.send_event("x", payload)
            await test.advance("1 second")
        await instance.resume()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"first": 1, "second": 2}, None)
        await decided_the_same(instance)

    play(definition, scenario, {"n": 1, "takes": "1 second"})


# -- many waits


def test_many_waits_for_one_time_end_in_decisions_of_a_limited_size():
    definition = graph(
        [node("start"), {"ref": "cool", "wait": {"durationMs": 1_000}}, node("end")],
        [
            edge("start", "cool", siblingGroup="A", spawnCount=2_000),
            edge("cool", "end", **joins("A")),
        ],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("1 second")
        assert (await instance.status()).status == "complete"
        # Each end of a wait has three events: it completes, a token follows, and arrives.
        largest = max(len(record.events) for record in test.records("g", "i"))
        assert largest < 4_000
        ended = await statuses(instance, "cool")
        assert (len(ended), set(ended)) == (2_000, {"completed"})

    play(definition, scenario)
