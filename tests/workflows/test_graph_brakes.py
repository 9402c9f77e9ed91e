"""What keeps runs of graphs within bounds: attempts in flight, tokens, depth, rounds."""

import asyncio
from typing import Any

import pytest

from headwater import Limits, Step, WorkflowEvent, WorkflowTest, workflow
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, fan, graph, node, outcome, play, statuses

LONG = {"n": 1, "takes": "1 hour"}


Outcome = tuple[str, Any, tuple[str, str] | None]


def limited(
    definition: dict[str, Any], params: object = None, **limits: int
) -> tuple[Outcome, int, Outcome]:
    """How a graph ends, after how many tokens, and how its retry ends."""

    async def whole() -> tuple[Outcome, int, Outcome]:
        async with WorkflowTest([definition], limits=Limits(**limits)) as test:
            instance = await test.create(definition["name"], id="i", params=params)
            await test.run_until_idle()
            tokens = (await instance.history()).tokens
            ended = await outcome(instance)
            if ended[0] == "errored":
                await instance.retry()
            await test.run_until_idle()
            again = await outcome(instance)
            same = [entry.same async for entry in instance.trace()]
            assert False not in same
            return ended, len(tokens), again

    return asyncio.run(whole())


def error_of(ended: Outcome) -> str:
    assert ended[2] is not None
    return ended[2][0]


def test_a_cycle_without_an_end_is_stopped():
    errored, tokens, again = limited(graph([node("a")], [edge("a", "a")]), max_rounds=5)
    assert (errored[0], error_of(errored)) == ("errored", "RoundLimitError")
    assert "'a'" in str(errored[2])
    assert tokens == 5
    # A retry counts on.
    assert again == errored


def test_wide_forks_are_no_rounds():
    definition = fan()
    definition["nodes"][1] = node("work")
    ended, _, _ = limited(definition, {"items": [1] * 50}, max_rounds=1)
    assert ended[0] == "complete"


def test_a_run_that_makes_too_many_tokens_is_stopped():
    nodes, ways = [node("n0")], []
    for level in range(10):
        nodes += [node(f"a{level}"), node(f"b{level}"), node(f"n{level + 1}")]
        for side in "ab":
            ways.append(edge(f"n{level}", f"{side}{level}"))
            ways.append(edge(f"{side}{level}", f"n{level + 1}"))
    errored, tokens, again = limited(graph(nodes, ways), max_tokens=100)
    assert (errored[0], error_of(errored)) == ("errored", "TokenLimitError")
    assert tokens <= 100
    assert error_of(again) == "TokenLimitError"


def test_a_graph_that_runs_itself_is_stopped():
    async def whole() -> None:
        definition = graph([{"ref": "a", "subworkflow": "g"}], [])
        async with WorkflowTest([definition], limits=Limits(max_depth=3)) as test:
            instance = await test.create("g", id="i")
            await asyncio.wait_for(test.run_until_idle(), 60)
            ended = await outcome(instance)
            assert (ended[0], error_of(ended)) == ("errored", "ChildWorkflowError")
            assert "max_depth" in str(ended[2])
            nested = [instance]
            while (child := (await nested[-1].history()).tokens[0].child_instance_id) is not None:
                nested.append(test.get("g", child))
            assert len(nested) == 3
            assert error_of(await outcome(nested[-1])) == "DepthLimitError"

    asyncio.run(whole())


def test_the_error_of_depth_may_be_followed():
    definition = graph(
        [{"ref": "a", "subworkflow": "g"}, node("end", outputMapping={"state.e": "error.name"})],
        [edge("a", "end", on="error")],
        outputMapping={"e": "state.e"},
    )
    ended, _, _ = limited(definition, max_depth=1)
    assert ended == ("complete", {"e": "DepthLimitError"}, None)


def test_code_that_runs_itself_is_stopped():
    @workflow("nest")
    async def nest(event: WorkflowEvent, step: Step) -> object:
        return await step.run_workflow("again", "nest")

    async def whole() -> None:
        async with WorkflowTest([nest], limits=Limits(max_depth=4)) as test:
            instance = await test.create("nest", id="i")
            await asyncio.wait_for(test.run_until_idle(), 60)
            status = await instance.status()
            assert status.status == "errored"
            assert status.error is not None
            assert "max_depth" in status.error.message

    asyncio.run(whole())


def test_a_test_can_stop_a_run_that_never_ends():
    async def whole() -> None:
        definition = graph([node("a")], [edge("a", "a")])
        async with WorkflowTest([definition], limits=Limits(max_rounds=10_000_000)) as test:
            await test.create("g", id="i")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(test.run_until_idle(), 0.2)

    asyncio.run(whole())


# -- dispatch


def test_branches_with_large_inputs_run_at_once():
    definition = fan(timeoutMs=60_000)
    definition["nodes"][1]["inputMapping"] = {"item": "item", "large": "input.large"}
    calls: list[Any] = []

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert len(calls) == 6
        await test.advance("1 hour")
        assert await outcome(instance) == ("complete", {"all": [2] * 6}, None)
        largest = max(len(record.events) for record in test.records("g", "i"))
        assert largest
        assert [entry.same async for entry in instance.trace()].count(False) == 0

    params = {"items": [LONG] * 6, "large": "x" * 600_000}
    play(definition, scenario, params, calls=calls)


def test_open_jobs_do_not_hold_back_tasks():
    definition = graph(
        [node("start"), node("job", "job", external=True), node("plain", "work")],
        [
            edge(
                "start",
                "job",
                siblingGroup="g",
                foreach={"collection": "input.items", "itemVar": "item"},
            ),
            edge("start", "plain"),
        ],
    )
    definition["nodes"][2]["inputMapping"] = {"item": "1"}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await statuses(instance, "plain") == ["completed"]
        assert (await statuses(instance, "job")).count("dispatched") == 1_000
        (job,) = await test.activate_jobs("job")
        await job.complete({})
        await test.run_until_idle()
        assert (await statuses(instance, "job")).count("dispatched") == 1_000

    play(definition, scenario, {"items": [1] * 1_002})


def test_the_last_timeout_of_a_task_times_its_token_out_and_names_the_node():
    definition = graph(
        [
            node(
                "start",
                "work",
                inputMapping={"item": "input"},
                timeoutMs=1_000,
                retries={"limit": 1, "delay": "1 second"},
            )
        ],
        [],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("1 minute")
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "StepTimeoutError")
        assert error is not None
        assert 'node "start"' in error[1]
        assert await statuses(instance) == ["timed_out"]

    play(definition, scenario, LONG)


def test_waits_that_are_over_and_loop_do_not_hold_up_the_process():
    definition = graph(
        [{"ref": "a", "wait": {"durationMs": 0}}, node("end")],
        [edge("a", "a", loopConfig={"maxIterations": 500}), edge("a", "end", priority=1)],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await instance.status()).status == "complete"
        assert max(len(record.events) for record in test.records("g", "i")) < 1_000
        assert [entry.same async for entry in instance.trace()].count(False) == 0

    play(definition, scenario)
