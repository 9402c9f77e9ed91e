"""Nodes that wait for a time or an event, and transitions that follow an error."""

import json
from typing import Any

import pytest

from headwater import NonRetryableError, WorkflowTest, task
from headwater.processors.graph.definition import DefinitionInvalid
from headwater.processors.graph.graph import graph_of
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, fan, graph, node, outcome, play, statuses

APPROVAL = {"ref": "approval", "event": {"type": "approval", "timeoutMs": 60_000}}


@task("refuse")
async def refuse(given: dict[str, Any]) -> dict[str, Any]:
    raise NonRetryableError(f"no {given.get('what', 'more')}")


def failing(*nodes: dict[str, Any], ways: list[dict[str, Any]]) -> dict[str, Any]:
    return graph([node("start", "refuse"), *nodes], ways)


# -- waits


def test_a_node_waits_for_so_long():
    definition = graph(
        [{"ref": "cool", "wait": {"durationMs": 60_000}}, node("end")], [edge("cool", "end")]
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await instance.status()).status == "waiting"
        assert await statuses(instance) == ["waiting_for_time"]
        (token,) = (await instance.introspect_tokens()).tokens
        assert token.waits_for.what == "time"
        await test.advance("59999 ms")
        assert await statuses(instance) == ["waiting_for_time"]
        await test.crash()
        await test.advance("1 ms")
        assert await outcome(instance) == ("complete", {}, None)
        assert await statuses(instance) == ["completed", "completed"]
        assert [entry.same async for entry in instance.trace()].count(False) == 0

    play(definition, scenario)


@pytest.mark.parametrize(
    "until", ["input.at", "timestamp(input.at)", "timestamp(input.at) + duration('0s')"]
)
def test_a_node_waits_until_a_time(until: str):
    definition = graph([{"ref": "cool", "wait": {"until": until}}], [])

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("59 minutes")
        assert await statuses(instance) == ["waiting_for_time"]
        await test.advance("1 minute")
        assert await outcome(instance) == ("complete", {}, None)

    play(definition, scenario, {"at": "2026-01-01T01:00:00Z"})


def test_a_time_that_is_over_is_not_waited_for_and_what_is_none_fails_the_node():
    definition = graph(
        [{"ref": "cool", "wait": {"until": "input.at"}}, node("other")],
        [edge("cool", "other", on="error")],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {}, None)
        assert await statuses(instance) == ["completed"]
        bad = await test.create("g", id="bad", params={"at": "tomorrow"})
        await test.run_until_idle()
        assert await outcome(bad) == ("complete", {}, None)
        assert await statuses(bad) == ["failed", "completed"]

    play(definition, scenario, {"at": "2020-01-01T00:00:00Z"})


# -- events


def approving(**more: object) -> dict[str, Any]:
    awaited = {
        **APPROVAL,
        "outputMapping": {"state.by": "result.payload.by", "state.at": "result.timestamp"},
    }
    return graph([awaited, node("end")], [edge("approval", "end")], **more)


def test_a_node_consumes_the_next_event_of_its_type():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await statuses(instance) == ["waiting_for_event"]
        assert (await instance.history()).tokens[0].event_type == "approval"
        (token,) = (await instance.introspect_tokens()).tokens
        assert (token.waits_for.what, token.waits_for.event_type) == ("event", "approval")
        assert "an event of type 'approval'" in " ".join((await instance.explain()).says)
        await test.advance("1 second")
        await instance.send_event("other", {"by": "Bo"})
        await instance.send_event("approval", {"by": "Ada"})
        await test.run_until_idle()
        expected = {"by": "Ada", "at": "2026-01-01T00:00:01.000Z"}
        assert await outcome(instance) == ("complete", expected, None)
        other, consumed = (await instance.history()).events
        assert (other.consumed_by_step_key, consumed.consumed_by_step_key) == (None, "0")
        assert [entry.same async for entry in instance.trace()].count(False) == 0

    play(approving(outputMapping={"by": "state.by", "at": "state.at"}), scenario)


def test_an_event_that_came_before_the_node_was_reached_is_kept_for_it():
    definition = graph(
        [{"ref": "cool", "wait": {"durationMs": 1_000}}, *approving()["nodes"]],
        [edge("cool", "approval"), *approving()["transitions"]],
        outputMapping={"by": "state.by"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await instance.send_event("approval", {"by": "Ada"})
        await test.crash()
        await test.advance("1 second")
        assert await outcome(instance) == ("complete", {"by": "Ada"}, None)
        assert [entry.same async for entry in instance.trace()].count(False) == 0

    play(definition, scenario)


def test_each_wait_gets_an_event_of_its_own_in_the_order_in_which_they_began():
    definition = fan()
    definition["nodes"][1] = {
        "ref": "work",
        "event": {"type": "vote"},
        "outputMapping": {"output.n": "result.payload"},
    }

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await instance.send_event("vote", "a")
        for vote in "bc":
            await test.run_until_idle()
            await instance.send_event("vote", vote)
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": ["a", "b", "c"]}, None)

    play(definition, scenario, {"items": [1, 2, 3]})


def test_an_event_of_the_last_moment_counts_and_a_later_one_does_not():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("59999 ms")
        await instance.send_event("approval", {"by": "Ada"})
        await test.run_until_idle()
        assert (await instance.status()).status == "complete"
        late = await test.create("g", id="late")
        await test.run_until_idle()
        await test.advance("60 seconds")
        status, _, error = await outcome(late)
        assert (status, error and error[0]) == ("errored", "EventTimeoutError")
        assert "'approval'" in error[1]
        assert await statuses(late) == ["timed_out"]
        assert [entry.same async for entry in late.trace()].count(False) == 0

    play(approving(), scenario)


def test_a_retry_waits_again_for_the_event_and_keeps_what_nobody_consumed():
    definition = graph(
        [*approving()["nodes"], node("bad", "work", inputMapping={"item": "{'n': 1, 'fails': 1}"})],
        [edge("approval", "bad")],
    )
    definition["nodes"][0]["event"]["timeoutMs"] = 1_000

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await instance.send_event("other", None)
        await test.advance("2 seconds")
        assert (await instance.status()).status == "errored"
        await instance.retry()
        await test.run_until_idle()
        assert await statuses(instance) == ["waiting_for_event"]
        await instance.send_event("approval", {"by": "Ada"})
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error) == ("errored", ("Flaky", "item 1"))
        await instance.retry()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {}, None)
        # The event was consumed once; its node is not done again.
        assert await statuses(instance) == ["completed", "completed"]

    play(definition, scenario)


# -- error transitions


def test_an_error_transition_follows_a_node_that_failed_for_good():
    definition = failing(
        node("mend", "work", inputMapping={"item": "error.name + ': ' + error.message"}),
        node("never"),
        ways=[
            edge("start", "never"),
            edge("start", "mend", on="error", condition="error.message.startsWith('no')"),
        ],
    )
    calls: list[Any] = []

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await instance.status()).status == "complete"
        assert await statuses(instance) == ["failed", "completed"]
        failed, _ = (await instance.history()).tokens
        assert failed.error is not None
        assert (failed.error.name, failed.error.message) == ("NonRetryableError", "no more")
        assert [entry.same async for entry in instance.trace()].count(False) == 0

    play(definition, scenario, calls=calls, tasks=[refuse])
    assert calls == ["NonRetryableError: no more"]


def test_a_failed_node_without_a_matching_error_transition_fails_the_run():
    definition = failing(
        node("other"), ways=[edge("start", "other", on="error", condition="error.name == 'X'")]
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        expected = ("errored", None, ("NonRetryableError", "no more"))
        assert await outcome(instance) == expected
        assert await statuses(instance) == ["failed"]
        assert [entry.same async for entry in instance.trace()].count(False) == 0

    play(definition, scenario, tasks=[refuse])


def test_error_transitions_have_priorities_and_every_match_of_a_tier_fires():
    definition = failing(
        node("a"),
        node("b"),
        node("c"),
        ways=[
            edge("start", "a", on="error", priority=1),
            edge("start", "b", on="error", priority=1),
            edge("start", "c", on="error", priority=2),
        ],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        refs = [token.node_ref for token in (await instance.history()).tokens]
        assert refs == ["start", "a", "b"]

    play(definition, scenario, tasks=[refuse])


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"task": "noop", "inputMapping": {"x": "input.n + 'a'"}}, "ExpressionError"),
        ({"task": "noop", "outputMapping": {"state.x": "input.n + 'a'"}}, "ExpressionError"),
        ({"task": "noop", "outputMapping": {"state.n": "'text'"}}, "ContextInvalidError"),
        ({"subworkflow": "nowhere"}, "ChildWorkflowError"),
        ({"event": {"type": "never", "timeoutMs": 1_000}}, "EventTimeoutError"),
        ({"task": "slow", "timeoutMs": 1_000}, "StepTimeoutError"),
        ({"task": "absent"}, "TaskNotFoundError"),
    ],
)
def test_whatever_makes_a_node_fail_is_followed(part: dict[str, Any], name: str):
    definition = graph(
        [{"ref": "start", **part}, node("end", outputMapping={"state.why": "error.name"})],
        [edge("start", "end", on="error")],
        contextSchema={"properties": {"n": {"type": "number"}}},
        outputMapping={"why": "state.why"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("1 minute")
        assert await outcome(instance) == ("complete", {"why": name}, None)
        timed_out = name in {"EventTimeoutError", "StepTimeoutError"}
        assert (await statuses(instance))[0] == ("timed_out" if timed_out else "failed")
        assert [entry.same async for entry in instance.trace()].count(False) == 0

    @task("slow")
    async def slow(_: dict[str, Any]) -> None:
        await world[0].sleep("1 hour")

    world: list[WorkflowTest] = []

    async def with_world(test: WorkflowTest, instance: Instance) -> None:
        world.append(test)
        await scenario(test, instance)

    play(definition, with_world, {"n": 1}, tasks=[slow])


def test_a_branch_goes_on_by_its_error_transition_and_joins():
    definition = fan()
    definition["nodes"].append(node("mend", outputMapping={"output.n": "error.message"}))
    definition["transitions"].append(edge("work", "mend", on="error"))
    join = definition["transitions"][1]["synchronization"]
    definition["transitions"].append(edge("mend", "end", synchronization=join))

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        expected = {"all": [2, "item 5 for good", 6]}
        assert await outcome(instance) == ("complete", expected, None)
        assert await statuses(instance, "work") == ["completed", "failed", "completed"]

    items = [1, {"n": 5, "final": True}, 3]
    play(definition, scenario, {"items": items})


def test_an_error_transition_may_lead_to_the_join_itself():
    definition = fan()
    definition["nodes"][2]["inputMapping"] = {"item": "error.message"}
    join = definition["transitions"][1]["synchronization"]
    definition["transitions"].append(
        edge("work", "end", on="error", synchronization=join) | {"ref": "work-end-error"}
    )
    definition["nodes"][2]["task"] = "work"
    calls: list[Any] = []

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [2, None]}, None)

    play(definition, scenario, {"items": [1, {"n": 5, "final": True}]}, calls=calls)
    assert calls[-1] == "item 5 for good"


def test_a_loop_of_errors_is_bounded_by_its_config_and_then_the_run_fails():
    definition = failing(ways=[edge("start", "start", on="error", loopConfig={"maxIterations": 2})])

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await outcome(instance))[0] == "errored"
        assert await statuses(instance) == ["failed", "failed", "failed"]

    play(definition, scenario, tasks=[refuse])


def test_a_child_that_took_too_long_is_ended_when_its_error_is_followed():
    child = graph([{"ref": "cool", "wait": {"durationMs": 3_600_000}}], [], name="child")
    definition = graph(
        [
            {"ref": "start", "subworkflow": "child", "timeoutMs": 1_000},
            {"ref": "long", "wait": {"durationMs": 10_000}},
        ],
        [edge("start", "long", on="error")],
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        token = (await instance.history()).tokens[0]
        assert token.child_instance_id is not None
        await test.advance("2 seconds")
        assert await statuses(instance) == ["timed_out", "waiting_for_time"]
        ended = test.get("child", token.child_instance_id)
        assert (await ended.status()).status == "terminated"

    play(definition, scenario, None, child)


# -- the whole run


def test_a_run_takes_no_longer_than_it_may_and_a_retry_has_as_long_again():
    definition = graph([{"ref": "cool", "wait": {"durationMs": 8_000}}], [], timeoutMs=5_000)

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("4999 ms")
        assert (await instance.status()).status == "waiting"
        await test.advance("1 ms")
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "RunTimeoutError")
        await instance.retry()
        await test.advance("4999 ms")
        assert (await instance.status()).status == "waiting"
        await test.advance("1 ms")
        assert (await instance.status()).status == "errored"

    play(definition, scenario)


@pytest.mark.parametrize("then", ["complete", "fail"])
def test_a_dead_end_completes_the_run_or_fails_it_as_the_graph_says(then: str):
    definition = graph(
        [node("start"), node("end")],
        [edge("start", "end", condition="input.n > 5")],
        onDeadEnd=then,
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        if then == "complete":
            assert (status, error) == ("complete", None)
        else:
            assert status == "errored"
            assert error is not None
            assert error[0] == "DeadEndError"
            assert "'start'" in error[1]
        fine = await test.create("g", id="fine", params={"n": 6})
        await test.run_until_idle()
        assert (await fine.status()).status == "complete"

    play(definition, scenario, {"n": 1})


# -- definitions


@pytest.mark.parametrize(
    ("change", "code", "path"),
    [
        ({"wait": {"durationMs": 1}}, "MULTIPLE_OWNERS", "nodes[0]"),
        ({"task": None}, "MISSING_OWNER", "nodes[0]"),
        ({"task": None, "wait": {}}, "INVALID_DEFINITION", "nodes[0].wait"),
        ({"task": None, "wait": {"durationMs": 1, "until": "1"}}, "INVALID_DEFINITION", None),
        ({"task": None, "wait": {"durationMs": -1}}, "INVALID_DEFINITION", None),
        ({"task": None, "wait": {"until": "1 +"}}, "INVALID_EXPRESSION", "nodes[0].wait.until"),
        ({"task": None, "event": {"type": "no name"}}, "INVALID_DEFINITION", None),
        ({"task": None, "event": {"type": "a", "timeoutMs": 0}}, "INVALID_DEFINITION", None),
        (
            {"task": None, "event": {"type": "a"}, "timeoutMs": 5},
            "INVALID_DEFINITION",
            "nodes[0].timeoutMs",
        ),
        (
            {"task": None, "event": {"type": "a"}, "inputMapping": {"a": "1"}},
            "INVALID_DEFINITION",
            None,
        ),
        (
            {"task": None, "event": {"type": "a"}, "retries": {"limit": 1}},
            "INVALID_DEFINITION",
            "nodes[0].retries",
        ),
        ({"task": None, "event": {"type": "a"}, "external": True}, "INVALID_DEFINITION", None),
        ({"inputMapping": {"a": "error.name"}}, "INVALID_EXPRESSION", None),
    ],
)
def test_a_node_that_contradicts_itself_is_refused(
    change: dict[str, Any], code: str, path: str | None
):
    definition = graph([{**node("a"), **change}], [])
    with pytest.raises(DefinitionInvalid) as refused:
        graph_of(json.loads(json.dumps(definition)))
    (problem,) = refused.value.problems
    assert problem.code == code
    assert path in {None, problem.path}


@pytest.mark.parametrize(
    "change", [{"timeoutMs": 0}, {"onDeadEnd": "stop"}, {"transitions": [edge("a", "a", on="x")]}]
)
def test_a_graph_that_contradicts_itself_is_refused(change: dict[str, Any]):
    with pytest.raises(DefinitionInvalid) as refused:
        graph_of(graph([node("a")], []) | change)
    assert [problem.code for problem in refused.value.problems] == ["INVALID_DEFINITION"]


# -- joins that cannot merge


def unmergeable(*ways: dict[str, Any], **more: object) -> dict[str, Any]:
    definition = fan(merge={**MERGE, "strategy": "merge_object"})
    definition["nodes"].append(
        node("mend", outputMapping={"state.why": "error.name", "state.what": "error.message"})
    )
    definition["transitions"] += ways
    return definition | {"outputMapping": {"why": "state.why", "all": "state.all"}, **more}


MERGE = {"source": "_branch.output.n", "target": "state.all"}


def test_a_merge_that_fails_is_a_failure_of_the_node_where_branches_meet():
    definition = unmergeable(edge("end", "mend", on="error"), edge("end", "start"))

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        expected = {"why": "MergeError", "all": None}
        assert await outcome(instance) == ("complete", expected, None)
        assert await statuses(instance, "end") == ["completed", "completed", "failed"]
        assert await statuses(instance, "work") == ["completed", "completed"]
        assert [entry.same async for entry in instance.trace()].count(False) == 0

    play(definition, scenario, {"items": [1, 2]})


def test_a_merge_that_fails_without_a_matching_error_transition_fails_the_run():
    definition = unmergeable(edge("end", "mend", on="error", condition="error.name == 'X'"))
    calls: list[Any] = []

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "MergeError")
        await instance.retry()
        await test.run_until_idle()
        assert (await instance.status()).status == "errored"
        # It is evaluated again, and no task is done again.
        assert len(calls) == 2

    play(definition, scenario, {"items": [1, 2]}, calls=calls)


def test_a_failure_in_an_inner_join_is_followed_within_its_branch():
    inner = {"strategy": "all", "siblingGroup": "inner"}
    merge = {**MERGE, "strategy": "merge_object", "target": "output.n"}
    definition = fan()
    definition["nodes"] = [
        node("start"),
        node("outer"),
        node("work", "work", inputMapping={"item": "item"}, outputMapping={"output.n": "result.n"}),
        node("meet"),
        node("mend", outputMapping={"output.n": "error.name"}),
        node("end"),
    ]
    fork, join = definition["transitions"]
    definition["transitions"] = [
        {**fork, "toNodeRef": "outer"},
        edge("outer", "work", siblingGroup="inner", spawnCount=2),
        edge("work", "meet", synchronization={**inner, "merge": merge}),
        edge("meet", "mend", on="error"),
        {**join, "fromNodeRef": "mend"},
    ]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        expected = {"all": ["MergeError", "MergeError"]}
        assert await outcome(instance) == ("complete", expected, None)
        assert [entry.same async for entry in instance.trace()].count(False) == 0

    play(definition, scenario, {"items": [1, 2]})


def test_a_branch_may_fail_if_its_join_tolerates_it_and_an_error_is_followed_first():
    definition = fan(onBranchFailure="tolerate")
    definition["nodes"].append(node("mend", outputMapping={"output.n": "error.message"}))
    join = definition["transitions"][1]["synchronization"]
    definition["transitions"] += [
        edge("work", "mend", on="error", condition="error.message.contains('7')"),
        edge("mend", "end", synchronization=join),
    ]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        expected = {"all": [2, "item 7 for good"]}
        assert await outcome(instance) == ("complete", expected, None)
        assert await statuses(instance, "work") == ["completed", "failed", "failed"]
        assert [entry.same async for entry in instance.trace()].count(False) == 0

    items = [1, {"n": 7, "final": True}, {"n": 8, "final": True}]
    play(definition, scenario, {"items": items})
