"""Graphs in the harness: their shapes, what fails in them, and what races in them."""

from typing import Any

import pytest

from headwater import (
    Step,
    StepNotFoundError,
    WorkflowEvent,
    WorkflowParamsInvalidError,
    WorkflowTest,
    task,
    workflow,
)
from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.graph import graph_of
from headwater.processors.graph.state import GraphRun
from headwater.processors.runs.limits import DECISION_BYTES_MAX
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, fan, graph, node, outcome, play, statuses

SLOW = {"n": 5, "takes": "10 seconds"}


def test_a_line_of_nodes_gives_its_output():
    definition = graph(
        [
            node(
                "a", "work", inputMapping={"item": "input.n"}, outputMapping={"state.n": "result.n"}
            ),
            node(
                "b",
                "work",
                inputMapping={"item": "state.n"},
                outputMapping={"output.n": "result.n"},
            ),
        ],
        [edge("a", "b")],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"n": 12}, None)
        history = await instance.history()
        assert history.steps == []
        first, second = history.tokens
        assert (first.path_id, first.parent_token_id, first.iteration_counts) == ("root", None, {})
        assert (second.parent_token_id, second.iteration_counts) == (first.id, {"a-b": 1})
        assert (second.status, second.branch_index, second.branch_total) == ("completed", 0, 1)

    play(definition, scenario, {"n": 3})


def test_branches_meet_once_with_their_outputs_in_the_order_of_branches():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("1 minute")
        assert await outcome(instance) == ("complete", {"all": [10, 2, 4]}, None)
        assert await statuses(instance, "work") == ["completed"] * 3
        # Three arrivals, and the token that goes on.
        assert await statuses(instance, "end") == ["completed"] * 4
        tokens = (await instance.history()).tokens
        branches = [token for token in tokens if token.node_ref == "work"]
        assert [branch.path_id for branch in branches] == [f"root.start.{n}" for n in range(3)]
        assert {branch.sibling_group for branch in branches} == {"group"}
        assert (tokens[-1].path_id, tokens[-1].iteration_counts) == (
            "root",
            {"start-work": 1, "work-end": 1},
        )

    play(fan(), scenario, {"items": [SLOW, 1, 2]})


def test_a_fan_in_for_any_cancels_what_is_still_on_its_way():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [2]}, None)
        assert await statuses(instance, "work") == ["cancelled", "completed"]
        reasons = {token.reason for token in (await instance.history()).tokens}
        assert "fan-in activated before completion" in reasons
        await test.advance("1 minute")
        assert await statuses(instance, "work") == ["cancelled", "completed"]

    play(fan("any"), scenario, {"items": [SLOW, 1]})


def test_a_quorum_goes_on_when_it_is_reached():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [2, 4]}, None)

    play(fan("m_of_n:2"), scenario, {"items": [SLOW, 1, 2]})


def test_a_quorum_that_cannot_be_reached_fails_the_run_at_once():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "SynchronizationUnreachableError")

    play(fan("m_of_n:3"), scenario, {"items": [1, 2]})


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        ("fail", ("errored", None, "SynchronizationTimeoutError")),
        ("proceed_with_available", ("complete", {"all": [2]}, None)),
    ],
)
def test_a_join_waits_no_longer_than_its_timeout(then: str, expected: tuple[Any, ...]):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await instance.status()).status == "active"
        await test.advance("4999 ms")
        assert (await instance.status()).status == "active"
        await test.advance("2 ms")
        status, output, error = await outcome(instance)
        assert (status, output, error and error[0]) == expected

    play(fan(timeoutMs=5_000, onTimeout=then), scenario, {"items": [1, SLOW]})


def test_the_last_arrival_wins_against_the_timeout_of_the_same_instant():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("1 minute")
        assert await outcome(instance) == ("complete", {"all": [2, 10]}, None)

    play(fan(timeoutMs=10_000), scenario, {"items": [1, SLOW]})


def test_a_task_that_fails_is_tried_again_and_then_fails_the_run():
    definition = fan()
    definition["nodes"][1] |= {"retries": {"limit": 1, "delay": "1 second"}}
    calls: list[Any] = []

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await instance.status()).status == "waiting"
        await test.advance("1 second")
        assert await outcome(instance) == ("complete", {"all": [2, 4]}, None)
        bad = await test.create("g", id="bad", params={"items": [{"n": 7, "fails": 2}, SLOW]})
        await test.run_until_idle()
        await test.advance("1 second")
        assert await outcome(bad) == ("errored", None, ("Flaky", "item 7"))
        assert await statuses(bad, "work") == ["failed", "cancelled"]

    play(definition, scenario, {"items": [1, {"n": 2, "fails": 1}]}, calls=calls)
    assert calls.count({"n": 2, "fails": 1}) == calls.count({"n": 7, "fails": 2}) == 2


def test_a_task_that_takes_too_long_has_failed():
    definition = fan()
    definition["nodes"][1] |= {"timeoutMs": 1_000}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("999 ms")
        assert (await instance.status()).status == "active"
        assert await statuses(instance, "work") == ["executing"]
        await test.advance("1 second")
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "StepTimeoutError")

    play(definition, scenario, {"items": [SLOW]})


def test_a_loop_runs_as_often_as_it_may_and_its_fan_in_activates_every_round():
    definition = fan()
    definition["nodes"][2] = node(
        "end", outputMapping={"state.rounds": "has(state.rounds) ? state.rounds + 1 : 1"}
    )
    definition["transitions"].append(
        edge("end", "start", condition="state.rounds < 10", loopConfig={"maxIterations": 2})
    )
    definition["outputMapping"] = {"rounds": "state.rounds", "all": "state.all"}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"rounds": 3, "all": [2, 4]}, None)
        assert await statuses(instance, "work") == ["completed"] * 6
        counts = (await instance.history()).tokens[-1].iteration_counts
        assert counts["end-start"] == 2

    play(definition, scenario, {"items": [1, 2]})


@pytest.mark.parametrize(
    ("on_empty", "output", "nodes"),
    [(None, {"all": None}, ["start"]), ("fan_in", {"all": []}, ["start", "end"])],
)
def test_an_empty_foreach_ends_or_goes_on_as_it_says(
    on_empty: str | None, output: object, nodes: list[str]
):
    definition = fan()
    if on_empty:
        definition["transitions"][0]["foreach"]["onEmpty"] = on_empty

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", output, None)
        assert [token.node_ref for token in (await instance.history()).tokens] == nodes

    play(definition, scenario, {"items": []})


@pytest.mark.parametrize("items", [None, 3, "text", {"a": 1}])
def test_a_foreach_over_what_is_no_list_fails_the_run_and_quotes_the_expression(items: object):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "ExpressionError")
        assert "input.items" in str(error)

    play(fan(), scenario, {"items": items})


def test_the_first_tier_with_a_match_wins_and_all_its_matches_fire():
    definition = graph(
        [node("a"), node("b"), node("c"), node("d"), node("e")],
        [
            edge("a", "b", priority=1, condition="input.n > 10"),
            edge("a", "c", priority=2, condition="input.n > 1"),
            edge("a", "d", priority=2),
            edge("a", "e", priority=3),
        ],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert [token.node_ref for token in (await instance.history()).tokens] == ["a", "c", "d"]

    play(definition, scenario, {"n": 5})


def test_branches_that_fork_again_meet_within_and_then_outside():
    inner = {"strategy": "append", "source": "_branch.output.n", "target": "output.all"}
    outer = {"strategy": "collect", "source": "_branch.output.all", "target": "state.all"}
    definition = graph(
        [
            node("start"),
            node("row"),
            node(
                "cell",
                "work",
                inputMapping={"item": "x + y"},
                outputMapping={"output.n": "result.n"},
            ),
            node("line"),
            node("end"),
        ],
        [
            edge(
                "start",
                "row",
                siblingGroup="rows",
                foreach={"collection": "input.rows", "itemVar": "x"},
            ),
            edge(
                "row",
                "cell",
                siblingGroup="cells",
                foreach={"collection": "input.cells", "itemVar": "y"},
            ),
            edge(
                "cell",
                "line",
                synchronization={"strategy": "all", "siblingGroup": "cells", "merge": inner},
            ),
            edge(
                "line",
                "end",
                synchronization={"strategy": "all", "siblingGroup": "rows", "merge": outer},
            ),
        ],
        outputMapping={"all": "state.all"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [[22, 24], [42, 44]]}, None)
        tokens = (await instance.history()).tokens
        assert tokens[-1].path_id == "root"
        assert "root.start.1.row.0" in {token.path_id for token in tokens}

    play(definition, scenario, {"rows": [10, 20], "cells": [1, 2]})


def test_a_branch_that_ends_elsewhere_is_not_waited_for():
    definition = fan()
    definition["transitions"][1] |= {"condition": "_branch.output.n > 2", "priority": 1}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [4, 6]}, None)

    play(definition, scenario, {"items": [2, 1, 3]})


def test_nothing_is_lost_when_the_process_dies_on_the_way():
    calls: list[Any] = []

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.crash()
        await test.run_until_idle()
        await test.advance("1 minute")
        assert await outcome(instance) == ("complete", {"all": [10, 2, 4]}, None)
        assert await statuses(instance, "end") == ["completed"] * 4

    play(fan(), scenario, {"items": [SLOW, 1, 2]}, calls=calls)
    assert (calls.count(1), calls.count(2)) == (1, 1)


def test_a_paused_run_begins_nothing_until_it_goes_on():
    calls: list[Any] = []

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await instance.pause()
        await test.advance("1 minute")
        assert await statuses(instance, "end") == ["waiting_for_siblings"]
        assert (await instance.status()).status == "paused"
        await instance.resume()
        await test.run_until_idle()
        assert (await instance.status()).status == "complete"

    play(fan(), scenario, {"items": [SLOW, 1]}, calls=calls)


@pytest.mark.parametrize("verb", ["terminate", "cancel"])
def test_a_terminated_run_cancels_its_tokens_and_may_run_again(verb: str):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await getattr(instance, verb)()
        assert (await instance.status()).status == "terminated"
        assert await statuses(instance) == ["completed", "cancelled"]
        await instance.restart()
        await test.advance("1 minute")
        assert await outcome(instance) == ("complete", {"all": [10]}, None)
        assert (await instance.status()).run_number == 1

    play(fan(), scenario, {"items": [SLOW]})


def test_a_retry_keeps_what_was_done():
    calls: list[Any] = []
    bad = {"n": 4, "fails": 1}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await instance.status()).status == "errored"
        await test.crash()
        with pytest.raises(StepNotFoundError, match="name no step, found 'work'"):
            await instance.retry(from_step="work")
        await instance.retry()
        await test.advance("1 minute")
        assert await outcome(instance) == ("complete", {"all": [2, 8, 10]}, None)

    play(fan(), scenario, {"items": [1, bad, SLOW]}, calls=calls)
    assert (calls.count(1), calls.count(bad)) == (1, 2)


NUMBERS = {
    "type": "object",
    "properties": {"all": {"type": "array", "items": {"type": "integer", "maximum": 9}}},
}


@pytest.mark.parametrize(
    ("schema", "name"),
    [("contextSchema", "ContextInvalidError"), ("outputSchema", "OutputInvalidError")],
)
def test_what_breaks_a_schema_fails_the_run_and_names_the_path(schema: str, name: str):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", name)
        assert "all" in str(error)

    play({**fan(), schema: NUMBERS}, scenario, {"items": [1, 9]})


def test_an_input_that_breaks_its_schema_is_refused():
    expected = {"type": "object", "properties": {"items": {"type": "array"}}, "required": ["items"]}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        with pytest.raises(WorkflowParamsInvalidError, match="items"):
            await test.create("g", id="other", params={"items": "none"})
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [2]}, None)

    play({**fan(), "inputSchema": expected}, scenario, {"items": [1]})


@task("total")
async def total(given: dict[str, Any]) -> dict[str, Any]:
    return {"total": sum(given["all"])}


CHILD = {**fan(), "name": "child"}


def parent(**more: object) -> dict[str, Any]:
    nodes = [
        {
            "ref": "sub",
            "subworkflow": "child",
            "inputMapping": {"items": "input.items"},
            "outputMapping": {"state.all": "result.all"},
            **more,
        },
        node(
            "sum",
            "total",
            inputMapping={"all": "state.all"},
            outputMapping={"output.total": "result.total"},
        ),
    ]
    return graph(nodes, [edge("sub", "sum")])


def test_a_graph_runs_a_graph_as_its_child():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await instance.status()).status == "waiting"
        assert await statuses(instance) == ["waiting_for_subworkflow"]
        await test.crash()
        await test.advance("1 minute")
        assert await outcome(instance) == ("complete", {"total": 12}, None)

    play(parent(), scenario, {"items": [SLOW, 1]}, CHILD, tasks=[total])


def test_a_child_that_takes_too_long_is_ended_and_fails_its_parent():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        token = (await instance.history()).tokens[0]
        assert (token.child_workflow_name, token.status) == ("child", "waiting_for_subworkflow")
        await test.advance("2 seconds")
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "ChildWorkflowError")
        assert await statuses(instance) == ["timed_out"]
        child = test.get("child", token.child_instance_id)
        assert (await child.status()).status == "terminated"

    play(parent(timeoutMs=1_000), scenario, {"items": [SLOW]}, CHILD, tasks=[total])


def test_a_child_that_fails_fails_its_parent_and_a_parent_that_ends_ends_its_child():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error) == (
            "errored",
            ("ChildWorkflowError", "Subworkflow failed: item 3 for good"),
        )
        for verb, why in (("terminate", None), ("cancel", "Cancelled")):
            other = await test.create("g", id=verb, params={"items": [SLOW]})
            await test.run_until_idle()
            token = (await other.history()).tokens[0]
            await getattr(other, verb)()
            await test.run_until_idle()
            child = test.get("child", token.child_instance_id)
            for item, name in ((other, why), (child, why or "Terminated")):
                ended = await item.status()
                assert (ended.status, ended.error and ended.error.name) == ("terminated", name)

    play(parent(), scenario, {"items": [{"n": 3, "final": True}]}, CHILD, tasks=[total])


def test_code_runs_a_graph_as_its_child():
    @workflow("code")
    async def code(_: WorkflowEvent, step: Step) -> object:
        return await step.run_workflow("sub", "child", id="sub-1", params={"items": [4]})

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        code_instance = await test.create("code", id="c")
        await test.run_until_idle()
        assert await outcome(code_instance) == ("complete", {"all": [8]}, None)
        assert await outcome(instance) == ("complete", {"total": 2}, None)

    play(parent(), scenario, {"items": [1]}, CHILD, code, tasks=[total])


def test_a_fan_out_of_two_thousand_meets():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, output, error = await outcome(instance)
        assert (status, error) == ("complete", None)
        assert output == {"all": [2 * number for number in range(2_000)]}

    play(fan(), scenario, {"items": list(range(2_000))})


def test_a_state_at_rest_is_the_state():
    definition = fan()
    definition["nodes"][1] |= {"retries": {"limit": 1, "delay": "1 hour"}}
    engine = GraphEngine([graph_of(definition)])

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        run = test.runs("g", instance.id)[0]
        assert isinstance(run, GraphRun)
        assert len(run.tokens) == 2
        assert run.meetings
        assert run.times
        assert engine.decode(engine.encode(run)) == run

    play(definition, scenario, {"items": [1, {"n": 2, "fails": 1}]})


def test_a_retry_does_the_task_again_whose_result_the_run_could_not_go_on_with():
    definition = fan()
    definition["nodes"][1]["task"] = "other"
    definition["nodes"][1]["outputMapping"] = {"output.n": "12 / result.n"}
    gave = iter([0, 4])

    @task("other")
    async def other(given: dict[str, Any]) -> dict[str, Any]:
        return {"n": next(gave)}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "ExpressionError")
        failed = (await instance.history()).tokens[1]
        assert (failed.status, failed.result) == ("failed", {"n": 0})
        await instance.retry()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [3]}, None)

    play(definition, scenario, {"items": [1]}, tasks=[other])


def test_a_retry_of_a_quorum_that_cannot_be_reached_ends_again_and_waits_for_nobody():
    definition = fan("m_of_n:2")
    definition["nodes"].append(node("away"))
    definition["transitions"].append(edge("work", "away", condition="item == 2", priority=-1))

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        for _ in range(2):
            await test.run_until_idle()
            status, _, error = await outcome(instance)
            assert (status, error and error[0]) == ("errored", "SynchronizationUnreachableError")
            await instance.retry()

    play(definition, scenario, {"items": [1, 2]})


@task("large")
async def large(given: dict[str, Any]) -> dict[str, Any]:
    return {"n": "x" * 80_000}


def many_large() -> dict[str, Any]:
    definition = fan()
    definition["nodes"][1]["task"] = "large"
    definition["outputMapping"] = {"count": "state.all.size()", "first": "output.first"}
    return definition


MANY = {"items": list(range(160))}


def test_branches_meet_whose_outputs_are_together_larger_than_a_record_may_be():
    definition = many_large()
    definition["nodes"][2]["outputMapping"] = {"output.first": "state.all[0].size()"}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"count": 160, "first": 80_000}, None)
        assert max(map(len, test._history)) < DECISION_BYTES_MAX < 160 * 80_000

    play(definition, scenario, MANY, tasks=[large])


def test_a_value_that_no_record_holds_fails_the_run_and_says_where_it_was_to_go():
    definition = many_large()
    definition["nodes"][2]["outputMapping"] = {"output.first": "state.all"}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "RECORD_TOO_LARGE")
        assert error is not None
        assert "the largest ContextChanged of output.first with 12800" in error[1]
        assert "map what is needed instead of whole outputs" in error[1]

    play(definition, scenario, MANY, tasks=[large])
