"""Errors of a whole branch, and what a retry does again: never what has completed."""

import copy
from typing import Any

import pytest

from headwater import CommandRefusedError, Task, WorkflowTest, task
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import Definition, edge, graph, node, outcome, play, statuses

FIRST = {"condition": "_branch.index == 0"}


def joins(group: str, strategy: str = "all", **more: object) -> dict[str, Any]:
    return {"synchronization": {"strategy": strategy, "siblingGroup": group, **more}}


def outer(nodes: list[dict[str, Any]], ways: list[dict[str, Any]], tolerance: str) -> Definition:
    """A fork of two branches: the first has the nodes, the second comes to the join at once."""
    join = joins("A", onBranchFailure=tolerance)
    return graph(
        [
            node("s"),
            node("c"),
            *nodes,
            node("j", outputMapping={"output.failed": "_branch.failed"}),
        ],
        [
            edge("s", "c", siblingGroup="A", spawnCount=2),
            edge("c", "j", condition="_branch.index == 1", **join),
            *ways,
            *(edge(last["ref"], "j", **join) for last in nodes[-1:]),
        ],
        onDeadEnd="fail",
    )


def quorum(tolerance: str) -> Definition:
    """Nobody comes to the inner join."""
    to_join = edge("v", "i", condition="_branch.index > 9", **joins("B", "m_of_n:1"))
    elsewhere = edge("v", "e", priority=1)
    fork = edge("c", "v", siblingGroup="B", spawnCount=2, **FIRST)
    return outer([node("v"), node("e"), node("i")], [fork, to_join, elsewhere], tolerance)


def unmet(tolerance: str) -> Definition:
    """One of two ways to a node that joins them is not taken."""
    nodes = [node("a"), node("b"), node("e"), node("d", join="all")]
    ways = [edge("c", "a", **FIRST), edge("c", "b", **FIRST), edge("a", "d")]
    ways += [edge("b", "d", condition="false"), edge("b", "e", priority=1)]
    return outer(nodes, ways, tolerance)


def dead_end(tolerance: str) -> Definition:
    nodes = [node("a"), node("b")]
    return outer(nodes, [edge("c", "a", **FIRST), edge("a", "b", condition="false")], tolerance)


def all_fail(tolerance: str) -> Definition:
    inner = joins("B", onBranchFailure="tolerate")
    broken = node("v", "work", inputMapping={"item": '{"n": 1, "final": true}'})
    fork = edge("c", "v", siblingGroup="B", spawnCount=2, **FIRST)
    return outer([broken, node("i")], [fork, edge("v", "i", **inner)], tolerance)


def late(tolerance: str) -> Definition:
    """An inner join waits for an hour, and no longer than a second."""
    takes = '{"n": 1, "takes": _branch.index == 0 ? "1 ms" : "1 hour"}'
    slow = node("v", "work", inputMapping={"item": takes})
    fork = edge("c", "v", siblingGroup="B", spawnCount=2, **FIRST)
    join = joins("B", timeoutMs=1_000)
    return outer([slow, node("i")], [fork, edge("v", "i", **join)], tolerance)


KINDS = {
    quorum: "SynchronizationUnreachableError",
    unmet: "SynchronizationUnreachableError",
    dead_end: "DeadEndError",
    all_fail: "NonRetryableError",
    late: "SynchronizationTimeoutError",
}


async def is_decided_again(instance: Instance) -> bool:
    return all([item.same async for item in instance.trace()])


@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_in_a_branch_fails_the_branch_if_its_fork_tolerates_it(kind: Any):  # noqa: ANN401, a function
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("1 minute")
        assert await outcome(instance) == ("complete", {"failed": 1}, None)
        assert await is_decided_again(instance)

    play(kind("tolerate"), scenario)


@pytest.mark.parametrize(("kind", "error"), KINDS.items())
def test_what_fails_in_a_branch_fails_the_run_if_no_fork_tolerates_it(kind: Any, error: str):  # noqa: ANN401
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        for _ in range(2):
            await test.advance("1 minute")
            status, _, failure = await outcome(instance)
            assert (status, failure and failure[0]) == ("errored", error)
            assert await is_decided_again(instance)
            await instance.retry()

    play(kind("fail"), scenario)


def test_a_branch_that_failed_for_its_joins_is_kept_if_the_run_cannot_continue_without_it():
    """The outer quorum needs both branches: so nothing of the inner fork has ended."""
    definition = late("tolerate")
    for way in definition["transitions"]:
        if way.get("synchronization", {}).get("siblingGroup") == "A":
            way["synchronization"]["strategy"] = "m_of_n:2"

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("1 minute")
        status, _, failure = await outcome(instance)
        assert (status, failure and failure[0]) == ("errored", "SynchronizationUnreachableError")
        assert await statuses(instance, "i") == ["timed_out"]
        assert await is_decided_again(instance)
        await instance.retry()
        await test.run_until_idle()
        assert (await instance.status()).status == "active"
        assert await statuses(instance, "i") == ["waiting_for_siblings"]

    play(definition, scenario)


# -- retries


def charge(calls: list[str]) -> Task:
    @task("charge")
    async def charge(given: dict[str, Any]) -> dict[str, Any]:
        calls.append("charge")
        return {"ok": True}

    return charge


def charged(*ways: dict[str, Any], **more: object) -> Definition:
    paid = {"outputMapping": {"state.paid": "result.ok"}}
    nodes = [node("pay", "charge", **paid), node("a"), node("b"), node("d", **more)]
    return graph(nodes, ways, onDeadEnd="fail", outputMapping={"paid": "state.paid"})


DEAD_END = charged(edge("pay", "d", condition="!state.paid"))
CONDITION = charged(edge("pay", "d", condition="1 / (state.paid ? 0 : 1) > 0"))
GATHERING = charged(
    edge("pay", "d"), {**edge("pay", "d", condition="!state.paid"), "ref": "b-d"}, join="all"
)


def with_way(definition: Definition) -> Definition:
    """The definition without conditions."""
    after = copy.deepcopy(definition)
    for way in after["transitions"]:
        way.pop("condition", None)
    return after


def without_way(definition: Definition) -> Definition:
    """The definition without transitions that have a condition."""
    after = copy.deepcopy(definition)
    after["transitions"] = [way for way in after["transitions"] if "condition" not in way]
    return after


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        (DEAD_END, with_way(DEAD_END), "DeadEndError"),
        (CONDITION, with_way(CONDITION), "ExpressionError"),
        (GATHERING, without_way(GATHERING), "SynchronizationUnreachableError"),
    ],
)
def test_a_retry_decides_again_and_repeats_no_node_that_has_completed(
    before: Definition, after: Definition, error: str
):
    calls: list[str] = []

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        for _ in range(3):
            await test.run_until_idle()
            status, _, failure = await outcome(instance)
            assert (status, failure and failure[0]) == ("errored", error)
            assert (await statuses(instance, "pay"), calls) == (["completed"], ["charge"])
            assert await is_decided_again(instance)
            await test.crash()
            await instance.retry()
        await test.run_until_idle()
        plan = await instance.migrate(after, dry_run=True)
        assert plan.possible
        await instance.migrate(after)
        assert (await instance.status()).status == "errored"
        await test.crash()
        await instance.retry()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"paid": True}, None)
        assert calls == ["charge"]
        assert await is_decided_again(instance)

    play(before, scenario, tasks=[charge(calls)])


def test_a_node_whose_transitions_are_decided_again_may_have_another_name():
    calls: list[str] = []
    after = with_way(DEAD_END)
    after["nodes"][0]["ref"] = after["initialNodeRef"] = "bill"
    after["transitions"][0]["fromNodeRef"] = "bill"

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        with pytest.raises(CommandRefusedError, match="at 'pay': there is no node 'pay'"):
            await instance.migrate(after)
        await instance.migrate(after, map={"pay": "bill"})
        await test.crash()
        await instance.retry()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"paid": True}, None)
        assert await statuses(instance, "d") == ["completed"]
        assert calls == ["charge"]

    play(DEAD_END, scenario, tasks=[charge(calls)])


def test_a_voter_who_has_completed_does_not_vote_again_in_a_retry():
    calls: list[Any] = []
    votes = node("v", "work", inputMapping={"item": "_branch.index"})
    definition = graph(
        [node("s"), votes, node("e"), node("j")],
        [
            edge("s", "v", siblingGroup="A", spawnCount=3),
            edge("v", "j", condition="_branch.index == 1", **joins("A", "m_of_n:2")),
            edge("v", "e", priority=1),
        ],
    )
    after = copy.deepcopy(definition)
    after["transitions"][1]["synchronization"]["strategy"] = "m_of_n:1"

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        for _ in range(2):
            status, _, failure = await outcome(instance)
            assert (status, failure and failure[0]) == (
                "errored",
                "SynchronizationUnreachableError",
            )
            assert await is_decided_again(instance)
            await instance.retry()
            await test.run_until_idle()
        await instance.migrate(after)
        await instance.retry()
        await test.run_until_idle()
        assert (await instance.status()).status == "complete"
        assert sorted(calls) == [0, 1, 2]
        assert await statuses(instance, "j") == ["completed", "completed"]

    play(definition, scenario, calls=calls)


def test_a_branch_output_that_was_set_lets_a_dead_end_be_decided_again():
    calls: list[str] = []
    definition = graph(
        [
            node("s"),
            node("pay", "charge", outputMapping={"output.paid": "!result.ok"}),
            node("j", outputMapping={"state.done": "true"}),
        ],
        [
            edge("s", "pay", siblingGroup="A", spawnCount=1),
            edge("pay", "j", condition="_branch.output.paid", **joins("A")),
        ],
        onDeadEnd="fail",
        outputMapping={"done": "state.done"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await outcome(instance))[2] is not None
        await instance.set_branch_output("A", 0, {"paid": True})
        await instance.retry()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"done": True}, None)
        assert calls == ["charge"]
        assert await is_decided_again(instance)

    play(definition, scenario, tasks=[charge(calls)])


def test_an_error_that_begins_an_empty_fork_is_known_where_it_joins():
    each = {"foreach": {"collection": "input.none", "itemVar": "x", "onEmpty": "fan_in"}}
    definition = graph(
        [
            node("s", "work", inputMapping={"item": '{"n": 1, "final": true}'}),
            node("w"),
            node("j", outputMapping={"state.why": "error.message"}),
        ],
        [
            edge("s", "w", siblingGroup="A", on="error", **each),
            edge("w", "j", **joins("A")),
        ],
        outputMapping={"why": "state.why"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"why": "item 1 for good"}, None)
        assert await is_decided_again(instance)

    play(definition, scenario, {"none": []})


def test_an_error_that_leads_to_joined_transitions_is_known_there():
    broken = node("b", "work", inputMapping={"item": '{"n": 1, "final": true}'})
    definition = graph(
        [
            node("s"),
            node("a"),
            broken,
            node("d", join="all", outputMapping={"state.why": "error.message"}),
        ],
        [edge("s", "a"), edge("s", "b"), edge("a", "d"), edge("b", "d", on="error")],
        outputMapping={"why": "state.why"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"why": "item 1 for good"}, None)

    play(definition, scenario)
