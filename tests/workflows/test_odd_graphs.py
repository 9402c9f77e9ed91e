"""Graphs that nobody writes twice: odd names, and instances of the same id in several graphs."""

from typing import Any

import pytest

from headwater import WorkflowTest
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, graph, node, outcome, play, statuses

ODD = ("a/b", "a~1b", "/", "0/end", "~", "é/ü", "a.b", "'\"`")


def two_branches(meeting: str, group: str, **join: object) -> dict[str, Any]:
    """Two branches, of which one takes an hour; they meet at a node."""
    synchronization = {"strategy": "all", "siblingGroup": group, "timeoutMs": 1_000, **join}
    slow = {"item": '{"n": 1, "takes": "1 hour"}'}
    return graph(
        [node("start"), node("fast"), node("slow", "work", inputMapping=slow), node(meeting)],
        [
            edge("start", "fast", siblingGroup=group),
            edge("start", "slow", siblingGroup=group),
            edge("fast", meeting, synchronization=synchronization),
            edge("slow", meeting, synchronization=synchronization),
        ],
    )


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("then", ["fail", "proceed_with_available"])
def test_a_join_whose_names_are_odd_waits_no_longer_than_its_timeout(odd: str, then: str):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.crash()
        (join,) = (await instance.explain()).joins
        assert (join.node_ref, join.sibling_group) == (odd, odd)
        assert (join.arrived_count, join.missing_count) == (1, 1)
        await test.advance("2 seconds")
        status, _, error = await outcome(instance)
        if then == "fail":
            assert (status, error and error[0]) == ("errored", "SynchronizationTimeoutError")
        else:
            assert (status, error) == ("complete", None)
            assert "completed" in await statuses(instance, odd)

    play(two_branches(odd, odd, onTimeout=then), scenario)


def test_meeting_points_whose_names_run_together_are_two():
    """The group `g` meets at `x/y`, and the group `g/x` at `y`: one waits at each for a minute."""
    takes = '{"n": _branch.index, "takes": _branch.index == 0 ? "1 second" : "1 minute"}'
    bodies = [node(f"in {value}", "work", inputMapping={"item": takes}) for value in ("g", "g/x")]
    ways = []
    for group, meeting in (("g", "x/y"), ("g/x", "y")):
        join = {"strategy": "m_of_n:2", "siblingGroup": group}
        body = f"in {group}"
        ways += [
            edge("start", body, siblingGroup=group, spawnCount=2),
            edge(body, meeting, synchronization=join),
        ]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("2 minutes")
        assert await outcome(instance) == ("complete", {}, None)
        for value in ("x/y", "y"):
            assert sorted(await statuses(instance, value)) == ["completed"] * 3

    play(graph([node("start"), *bodies, node("x/y"), node("y")], ways), scenario)


def test_a_fork_without_a_group_is_its_own_whatever_groups_are_named():
    ways = [
        {**edge("start", "a", spawnCount=2), "ref": "t"},
        edge("start", "b", siblingGroup=":t", spawnCount=3),
    ]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        tokens = (await instance.history()).tokens
        assert [token.branch_total for token in tokens] == [1, 2, 2, 3, 3, 3]

    play(graph(map(node, ("start", "a", "b")), ways), scenario)


def test_children_of_two_graphs_whose_instances_have_one_id_are_two():
    def parent(name: str) -> dict[str, Any]:
        who = {"inputMapping": {"who": f"'{name}'"}, "outputMapping": {"output.who": "result.who"}}
        return graph([{"ref": "a", "subworkflow": "child", **who}], [], name=name)

    child = graph([node("a")], [], name="child", outputMapping={"who": "input.who"})

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        other = await test.create("other", id=instance.id)
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"who": "one"}, None)
        assert await outcome(other) == ("complete", {"who": "other"}, None)

    play(parent("one"), scenario, None, parent("other"), child)


@pytest.mark.parametrize("source", [".state.n", "state.n // of the run", "(state).n"])
def test_state_is_seen_however_it_is_named(source: str):
    nodes = [node("a", outputMapping={"state.n": "7"})]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"n": 7}, None)

    play(graph(nodes, [], outputMapping={"n": source}), scenario)
