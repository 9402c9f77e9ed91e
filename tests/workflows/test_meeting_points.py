"""Joins in the harness: several meeting points of a fork, branches that fail, retries."""

from typing import Any

import pytest

from headwater import CommandRefusedError, NonRetryableError, Task, WorkflowTest, task
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, graph, node, outcome, play, statuses

#: So long takes a task that does not end within a test.
EVER = "1 hour"


def voter(test: list[WorkflowTest], calls: list[int]) -> Task:
    """A task of a branch: its script says what each of its calls does.

    Params: `{"votes": [[…], …]}`, for each branch what it does call by call: a value, `"fails"`, or
    `{"takes": …, "then": …}`.
    """

    @task("vote")
    async def vote(given: dict[str, Any]) -> dict[str, Any]:
        number, script = given["index"], given["script"]
        does = script[min(calls.count(number), len(script) - 1)]
        calls.append(number)
        if isinstance(does, dict) and "takes" in does:
            await test[0].sleep(does["takes"])
            does = does.get("then")
        if does == "fails":
            raise NonRetryableError(f"voter {number}")
        return {"v": does}

    return vote


def vote_node(ref: str = "w", **more: object) -> dict[str, Any]:
    mapping = {"index": "_branch.index", "script": "input.votes[_branch.index]"}
    return node(ref, "vote", inputMapping=mapping, outputMapping={"output.v": "result.v"}, **more)


def joined(strategy: str, group: str = "A", **more: object) -> dict[str, Any]:
    return {"strategy": strategy, "siblingGroup": group, **more}


def fork(begin: str, end: str, group: str = "A", **more: object) -> dict[str, Any]:
    many = more or {"foreach": {"collection": "input.votes", "itemVar": "script"}}
    return edge(begin, end, siblingGroup=group, **many)


def ballot(approve: str, reject: str, **more: object) -> dict[str, Any]:
    """The first meeting point takes who says yes, the second who says no; others end elsewhere."""
    approval, rejection = joined(approve, **more), joined(reject, **more)
    return graph(
        [
            node("s"),
            vote_node(),
            node(
                "approve",
                outputMapping={"state.approved": "true", "state.failed": "_branch.failed"},
            ),
            node(
                "reject", outputMapping={"state.rejected": "true", "state.failed": "_branch.failed"}
            ),
        ],
        [
            fork("s", "w"),
            edge("w", "approve", condition="_branch.output.v == 'yes'", synchronization=approval),
            edge("w", "reject", condition="_branch.output.v == 'no'", synchronization=rejection),
        ],
        outputMapping={"approved": "state.approved", "rejected": "state.rejected"},
    )


def later(seconds: int, then: object) -> list[object]:
    return [{"takes": f"{seconds} seconds", "then": then}]


def cast(
    definition: dict[str, Any],
    votes: list[list[Any]],
    scenario: Any,  # noqa: ANN401, a Scenario
    calls: list[int] | None = None,
    **params: object,
) -> None:
    """Plays a scenario with voters."""
    world: list[WorkflowTest] = []

    async def whole(test: WorkflowTest, instance: Instance) -> None:
        world.append(test)
        await scenario(test, instance)

    tasks = [voter(world, [] if calls is None else calls)]
    play(definition, whole, {"votes": votes, **params}, tasks=tasks)


# -- several meeting points of one fork

ORDERED = [later(1, "no"), later(2, "yes"), later(3, "no")]


@pytest.mark.parametrize("reject", ["all", "m_of_n:3", "m_of_n:2"])
def test_the_fork_is_over_when_one_of_its_meeting_points_goes_on(reject: str):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("10 seconds")
        assert await outcome(instance) == (
            "complete",
            {"approved": True, "rejected": None},
            None,
        )
        # Who waits elsewhere has completed, who was on his way is cancelled.
        assert await statuses(instance, "reject") == ["completed"]
        assert await statuses(instance, "w") == ["completed", "completed", "cancelled"]
        assert await statuses(instance, "approve") == ["completed", "completed"]

    cast(ballot("any", reject), ORDERED, scenario)


def test_the_second_meeting_point_goes_on_if_the_first_cannot():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("10 seconds")
        assert await outcome(instance) == (
            "complete",
            {"approved": None, "rejected": True},
            None,
        )

    cast(ballot("m_of_n:2", "all"), [["no"], ["yes"], ["no"]], scenario)
    cast(ballot("any", "all"), [["no"], ["no"]], scenario)


def test_a_run_fails_when_none_of_its_meeting_points_can_be_met():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "SynchronizationUnreachableError")

    cast(ballot("m_of_n:2", "m_of_n:2"), [["yes"], ["no"], ["neither"]], scenario)


# -- quorums fail at once

HOUR = [{"takes": EVER}]


def quorum(strategy: str) -> dict[str, Any]:
    return graph(
        [node("s"), vote_node(), node("j")],
        [
            fork("s", "w"),
            edge("w", "j", condition="_branch.output.v == 'yes'", synchronization=joined(strategy)),
        ],
    )


@pytest.mark.parametrize(
    ("strategy", "votes"),
    [
        # Nobody has arrived.
        ("m_of_n:2", [["no"], ["no"], HOUR]),
        ("m_of_n:3", [["yes"], ["no"], HOUR]),
        # There are too few branches from the start.
        ("m_of_n:5", [HOUR, HOUR, HOUR]),
    ],
)
def test_a_quorum_that_can_no_longer_be_met_fails_the_run_at_once(
    strategy: str, votes: list[list[Any]]
):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "SynchronizationUnreachableError")

    calls: list[int] = []
    cast(quorum(strategy), votes, scenario, calls)
    assert bool(calls) is (strategy != "m_of_n:5")


def test_a_branch_that_has_arrived_and_still_moves_is_counted_once():
    definition = quorum("m_of_n:4")
    definition["nodes"].append(vote_node("slow"))
    definition["transitions"].append(edge("w", "slow", condition="_branch.index == 2"))
    votes: list[list[Any]] = [["yes"], later(5, "no"), ["yes", HOUR[0]], HOUR]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("6 seconds")
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "SynchronizationUnreachableError")
        assert error is not None
        assert "2 arrived and at most 3 can" in error[1]

    cast(definition, votes, scenario)


def test_only_any_and_all_are_not_reached_when_all_branches_end_elsewhere():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await instance.status()).status == "complete"

    for strategy in ("any", "all"):
        cast(quorum(strategy), [["no"], ["no"]], scenario)


# -- branches that fail


def tolerant(strategy: str) -> dict[str, Any]:
    merge = {"source": "_branch.output.v", "target": "state.votes", "strategy": "collect"}
    join = joined(strategy, onBranchFailure="tolerate", merge=merge)
    return graph(
        [node("s"), vote_node(), node("j", outputMapping={"state.failed": "_branch.failed"})],
        [fork("s", "w"), edge("w", "j", synchronization=join)],
        outputMapping={"votes": "state.votes", "failed": "state.failed"},
    )


@pytest.mark.parametrize(
    ("strategy", "votes", "output"),
    [
        ("all", [["a"], ["fails"], ["c"]], {"votes": ["a", "c"], "failed": 1}),
        ("all", [["fails"], ["fails"], later(5, "c")], {"votes": ["c"], "failed": 2}),
        ("m_of_n:2", [["fails"], ["b"], later(5, "c")], {"votes": ["b", "c"], "failed": 1}),
        ("any", [["fails"], later(5, "b"), later(6, "c")], {"votes": ["b"], "failed": 1}),
        ("all", [["a"], ["b"]], {"votes": ["a", "b"], "failed": 0}),
    ],
)
def test_a_branch_that_may_fail_has_ended_elsewhere(
    strategy: str, votes: list[list[Any]], output: dict[str, Any]
):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("10 seconds")
        assert await outcome(instance) == ("complete", output, None)
        failed = [status for status in await statuses(instance, "w") if status == "failed"]
        assert len(failed) == output["failed"]

    cast(tolerant(strategy), votes, scenario)


def test_a_run_fails_with_the_first_failure_when_all_branches_fail():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("10 seconds")
        assert await outcome(instance) == ("errored", None, ("NonRetryableError", "voter 1"))
        # The retry does the node again that failed last; its first branch stays as it is.
        await instance.retry()
        await test.advance("10 seconds")
        assert await outcome(instance) == ("complete", {"votes": ["b"], "failed": 1}, None)

    votes = [[{"takes": "5 seconds", "then": "fails"}, "b"], ["fails"]]
    cast(tolerant("all"), votes, scenario)


def test_too_many_failures_make_a_quorum_unreachable_and_a_retry_does_the_last_again():
    calls: list[int] = []

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("10 seconds")
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "SynchronizationUnreachableError")
        assert error is not None
        assert "1 arrived, 2 failed and at most 1 can" in error[1]
        await instance.retry()
        await test.advance("10 seconds")
        assert await outcome(instance) == ("complete", {"votes": ["b", "c"], "failed": 1}, None)

    votes = [["fails"], [{"takes": "2 seconds", "then": "fails"}, "b"], ["c"]]
    cast(tolerant("m_of_n:2"), votes, scenario, calls)
    assert calls == [0, 1, 2, 1]


def test_a_failure_in_a_nested_fork_ends_the_branch_of_the_fork_that_tolerates_it():
    join = joined("all", "A", onBranchFailure="tolerate")
    definition = graph(
        [
            node("s"),
            node("c"),
            vote_node(),
            node("inner"),
            node("j", outputMapping={"state.failed": "_branch.failed"}),
        ],
        [
            fork("s", "c", "A", spawnCount=2),
            fork("c", "w", "B", foreach={"collection": "input.votes", "itemVar": "x"}),
            edge("w", "inner", synchronization=joined("all", "B")),
            edge("inner", "j", synchronization=join),
        ],
        outputMapping={"failed": "state.failed"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("10 seconds")
        assert await outcome(instance) == ("complete", {"failed": 1}, None)
        assert sorted(await statuses(instance, "w")) == [
            "cancelled",
            "completed",
            "completed",
            "failed",
        ]

    # The second outer branch does what scripts say for their second calls.
    cast(definition, [["a", "fails"], [{"takes": "3 seconds"}]], scenario)


# -- retries


def test_a_retry_gives_a_join_its_full_time_again():
    definition = quorum("all")
    definition["transitions"][1]["synchronization"]["timeoutMs"] = 60_000

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await test.advance("61 seconds")
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "SynchronizationTimeoutError")
        await test.advance("1 hour")
        await instance.retry()
        await test.advance("30 seconds")
        assert (await instance.status()).status == "active"
        waiting = [token for token in (await instance.history()).tokens if token.wake_at]
        assert len(waiting) == 1
        await test.advance("25 seconds")
        assert (await instance.status()).status == "complete"

    cast(
        definition,
        [["yes"], [{"takes": "1 day"}, {"takes": "50 seconds", "then": "yes"}]],
        scenario,
    )


def objects() -> dict[str, Any]:
    merge = {"source": "_branch.output.v", "target": "state.v", "strategy": "merge_object"}
    return graph(
        [node("s"), vote_node(), node("j")],
        [fork("s", "w"), edge("w", "j", synchronization=joined("all", merge=merge))],
        outputMapping={"v": "state.v"},
    )


def test_a_failed_merge_blames_no_node_and_a_retry_runs_none_again():
    calls: list[int] = []

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        for _ in range(3):
            await test.advance("10 seconds")
            status, _, error = await outcome(instance)
            assert (status, error and error[0]) == ("errored", "MergeError")
            assert await statuses(instance, "w") == ["completed", "completed"]
            assert await statuses(instance, "j") == ["cancelled", "cancelled"]
            await instance.retry()

    cast(objects(), [[5], later(2, {"a": 1})], scenario, calls)
    assert calls == [0, 1]


def test_a_merge_is_done_again_with_an_output_that_was_set():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        with pytest.raises(CommandRefusedError, match="expected one fork of 'B' that waits"):
            await instance.set_branch_output("B", 0, {})
        with pytest.raises(CommandRefusedError, match="branch: expected 0 to 1"):
            await instance.set_branch_output("A", 2, {})
        with pytest.raises(CommandRefusedError, match=r"output\.v: expected an integer"):
            await instance.set_branch_output("A", 0, {"v": 2**64})
        await instance.set_branch_output("A", 0, {"v": {"b": 2}})
        assert (await instance.status()).status == "errored"
        await test.crash()
        await instance.retry()
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"v": {"a": 1, "b": 2}}, None)
        assert await is_decided_again(instance)
        with pytest.raises(CommandRefusedError, match="expected an errored instance"):
            await instance.set_branch_output("A", 0, {})

    calls: list[int] = []
    cast(objects(), [[5], [{"a": 1}]], scenario, calls)
    assert calls == [0, 1]


# -- nested forks


def nested(source: str, target: str = "state.sales") -> dict[str, Any]:
    merge = {"source": source, "target": target, "strategy": "collect"}
    return graph(
        [
            node("s"),
            node("city"),
            node("shop", outputMapping={"output.v": "x + _branch.index"}),
            node("report"),
        ],
        [
            edge(
                "s",
                "city",
                siblingGroup="cities",
                foreach={"collection": "input.cities", "itemVar": "c"},
            ),
            edge("city", "shop", siblingGroup="shops", foreach={"collection": "c", "itemVar": "x"}),
            edge("shop", "report", synchronization=joined("all", "cities", merge=merge)),
        ],
        outputMapping={"sales": "state.sales"},
    )


def test_inner_branches_that_come_to_the_outer_meeting_point_are_the_output_of_their_branch():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        sales = [[{"v": 10}, {"v": 21}], [{"v": 30}]]
        assert await outcome(instance) == ("complete", {"sales": sales}, None)

    play(nested("_branch.output"), scenario, {"cities": [[10, 20], [30]]})


def test_a_merge_of_a_path_that_only_inner_branches_have_is_refused():
    with pytest.raises(ValueError, match=r"merge\.source: expected _branch\.output, the list"):
        WorkflowTest([nested("_branch.output.v")])
    # A token that comes from its own branch has the path.
    definition = nested("_branch.output.v")
    definition["transitions"].append(edge("city", "shop", priority=1) | {"ref": "alone"})
    WorkflowTest([definition])


# -- an empty fork


def test_an_empty_fork_goes_on_with_the_merges_of_all_ways_into_its_join():
    def merge(target: str, strategy: str) -> dict[str, Any]:
        source = "_branch.output.v"
        return {"merge": {"source": source, "target": target, "strategy": strategy}}

    foreach = {"collection": "input.none", "itemVar": "x", "onEmpty": "fan_in"}
    definition = graph(
        [node("s"), node("w"), node("v"), node("j")],
        [
            edge("s", "w", siblingGroup="A", foreach=foreach),
            edge("w", "v"),
            edge("w", "j", synchronization=joined("all", **merge("state.a", "append"))),
            edge("v", "j", synchronization=joined("all", **merge("state.b", "keyed_by_branch"))),
        ],
        outputMapping={"a": "state.a", "b": "state.b"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"a": [], "b": {}}, None)

    play(definition, scenario, {"none": []})


# -- what a trace says


async def is_decided_again(instance: Instance) -> bool:
    """Whether each decision is the same when it is made again."""
    return all([item.same async for item in instance.trace()])


async def merged_ids(instance: Instance) -> list[list[str]]:
    return [
        decision["merged_token_ids"]
        async for item in instance.trace()
        for decision in item.decisions
        if decision["type"] == "ACTIVATE_FAN_IN"
    ]


def test_a_trace_names_all_tokens_that_are_merged():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("10 seconds")
        assert await merged_ids(instance) == [["4", "5", "6"]]
        assert await is_decided_again(instance)

    cast(quorum("all"), [later(1, "yes"), later(2, "yes"), later(3, "yes")], scenario)


def test_a_trace_names_them_when_a_branch_that_ends_elsewhere_lets_the_join_go_on():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("10 seconds")
        assert await merged_ids(instance) == [["3"]]

    cast(quorum("all"), [later(1, "yes"), later(2, "no")], scenario)


# -- nodes that join their ways


def both(*more: dict[str, Any], **of_right: object) -> dict[str, Any]:
    return graph(
        [
            node("s"),
            node("a"),
            node("b"),
            node("d", join="all", outputMapping={"state.n": "has(state.n) ? state.n + 1 : 1"}),
        ],
        [edge("s", "a"), edge("s", "b"), edge("a", "d"), edge("b", "d", **of_right), *more],
        outputMapping={"n": "state.n"},
    )


def test_a_node_that_joins_all_runs_once_for_its_ways():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"n": 1}, None)
        *arrived, last = [t for t in (await instance.history()).tokens if t.node_ref == "d"]
        assert len(arrived) == 2
        assert last.iteration_counts == {"s-a": 1, "s-b": 1, "a-d": 1, "b-d": 1}
        assert (last.path_id, last.parent_token_id) == ("root", arrived[-1].id)
        assert await is_decided_again(instance)

    play(both(), scenario)


def test_a_node_that_joins_all_waits_in_each_branch_and_in_each_round():
    again = edge("d", "s", loopConfig={"maxIterations": 2})
    definition = both(again, edge("d", "j", priority=1, synchronization=joined("all")))
    definition["nodes"] += [node("begin"), node("j")]
    definition["initialNodeRef"] = "begin"
    definition["transitions"].append(fork("begin", "s", spawnCount=3))

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        # Three branches, with three rounds each.
        assert await outcome(instance) == ("complete", {"n": 9}, None)

    play(definition, scenario)


def test_a_node_that_joins_all_fails_the_run_when_one_of_its_ways_is_not_taken():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == (
            "errored",
            None,
            (
                "SynchronizationUnreachableError",
                "Node 'd' waits for a token by each of its transitions, and none can arrive by b-d",
            ),
        )

    play(both(condition="false"), scenario)


def test_without_join_a_node_runs_once_for_each_arrival():
    definition = both()
    del definition["nodes"][3]["join"]

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"n": 2}, None)

    play(definition, scenario)


@pytest.mark.parametrize("more", [{"siblingGroup": "A"}, {"synchronization": joined("all")}])
def test_a_node_joins_its_ways_or_the_branches_of_a_fork(more: dict[str, object]):
    definition = both(**more)
    definition["transitions"].append(fork("b", "a", spawnCount=2))
    with pytest.raises(ValueError, match="INVALID_STRATEGY at transitions"):
        WorkflowTest([definition])
