"""Joins: when a meeting point goes on, with what, and what becomes of the others."""

from collections.abc import Sequence

import msgspec
import pytest

from headwater.processors.graph.definition import Transition
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.joins import (
    Arrival,
    JoinState,
    decide_branch_end,
    decide_continuation,
    decide_synchronization,
    decide_timeout,
    timeout_at_ms,
)
from headwater.processors.graph.planning import (
    ActivateFanIn,
    ApplyBranchOutput,
    CancelTokens,
    CompleteTokens,
    Continuation,
    Counts,
    CreateToken,
    FailWorkflow,
    Fork,
    MarkForDispatch,
    MarkWaiting,
    SetContext,
    Token,
    TokenStatus,
    UpdateTokenStatus,
)
from tests.unit.processors.graph.graphs import graph, joined, merged, node, review, way

ORIGIN = Token(id="t0", node_ref="start", iteration_counts={"loop": 2})
FORK = Fork(id="f", group="judges", total=3, origin=ORIGIN)


def meeting(**synchronization: object) -> Transition:
    return graph_of(review(**synchronization)).transition("t2")


def arrived(index: int) -> Token:
    return Token(
        id=f"a{index}",
        node_ref="tally",
        sibling_group="judges",
        branch_index=index,
        branch_total=3,
        fork="f",
    )


@pytest.mark.parametrize(
    ("strategy", "total", "completed", "failed", "terminal", "expected"),
    [
        ("any", 3, 1, 0, 0, ActivateFanIn),
        ("all", 3, 2, 0, 2, MarkWaiting),
        ("all", 3, 3, 0, 3, ActivateFanIn),
        ("all", 1, 1, 0, 1, ActivateFanIn),
        # Those that ended elsewhere, or failed, are not waited for.
        ("all", 3, 1, 0, 3, ActivateFanIn),
        ("all", 3, 2, 1, 3, ActivateFanIn),
        # Arrived, but another token of a branch may follow.
        ("all", 3, 3, 0, 2, MarkWaiting),
        ("m_of_n:2", 3, 1, 0, 1, MarkWaiting),
        ("m_of_n:2", 3, 2, 0, 2, ActivateFanIn),
        ("m_of_n:2", 3, 1, 1, 2, MarkWaiting),
        ("m_of_n:2", 3, 2, 1, 3, ActivateFanIn),
        ("m_of_n:2", 3, 1, 1, 3, FailWorkflow),
        ("m_of_n:2", 3, 1, 0, 3, FailWorkflow),
        ("m_of_n:4", 3, 1, 0, 1, FailWorkflow),
        ("m_of_n:3", 3, 1, 0, 2, FailWorkflow),
    ],
)
def test_an_arrival_goes_on_waits_or_fails(
    strategy: str, total: int, completed: int, failed: int, terminal: int, expected: type
):
    counts = Counts(total=total, completed=completed, failed=failed, terminal=terminal)
    (only,) = decide_synchronization(meeting(strategy=strategy), arrived(0), counts).decisions
    assert isinstance(only, expected)


def test_an_activation_names_the_meeting_point_and_who_met():
    counts = Counts(total=2, completed=2, terminal=2)
    planned = decide_synchronization(meeting(), arrived(1), counts, waiting=["a0"])
    assert planned.decisions == (
        ActivateFanIn(
            node_ref="tally",
            fork="f",
            fan_in_path="judges:tally",
            transition_ref="t2",
            merged_token_ids=("a0", "a1"),
        ),
    )


def test_a_quorum_that_cannot_be_reached_says_so():
    counts = Counts(total=3, completed=1, terminal=3)
    (only,) = decide_synchronization(meeting(strategy="m_of_n:2"), arrived(0), counts).decisions
    assert isinstance(only, FailWorkflow)
    assert only.error == (
        "Synchronization of sibling group 'judges' cannot be reached: m_of_n:2 of 3 branches, "
        "1 arrived and at most 1 can"
    )


@pytest.mark.parametrize(
    "token",
    [Token(id="a0", node_ref="tally"), Token(id="a0", node_ref="tally", sibling_group="jury")],
)
def test_a_token_outside_of_the_group_goes_straight_on(token: Token):
    counts = Counts(total=0, completed=0, terminal=0)
    planned = decide_synchronization(meeting(), token, counts)
    assert planned.decisions == (MarkForDispatch(token_id="a0"),)
    plain = graph_of(review()).transition("t1")
    assert decide_synchronization(plain, token, counts).decisions == planned.decisions


def join_of(strategy: str, completed: int, terminal: int, settled: int | None = None) -> JoinState:
    counts = Counts(total=3, completed=completed, terminal=terminal, settled=settled)
    return JoinState(meeting(strategy=strategy), counts, (f"a{n}" for n in range(completed)))


@pytest.mark.parametrize(
    ("joins", "expected"),
    [
        ([join_of("all", 2, 3)], [ActivateFanIn]),
        ([join_of("all", 1, 2)], []),
        # Nobody has come: the meeting point is not reached, and the run goes on without it.
        ([join_of("all", 0, 3)], []),
        ([join_of("any", 0, 3)], []),
        ([join_of("m_of_n:2", 1, 3)], [FailWorkflow]),
        ([join_of("m_of_n:2", 1, 2)], []),
        # Whether anybody has come or not.
        ([join_of("m_of_n:2", 0, 2)], [FailWorkflow]),
        ([join_of("m_of_n:4", 0, 0)], [FailWorkflow]),
        # Of two that have come one still moves.
        ([join_of("m_of_n:3", 2, 2, 1)], [FailWorkflow]),
        ([join_of("m_of_n:3", 2, 1, 1)], []),
        # Another meeting point goes on, or still may.
        ([join_of("m_of_n:2", 1, 3), join_of("all", 2, 3)], [ActivateFanIn]),
        ([join_of("m_of_n:2", 0, 2), join_of("any", 0, 2)], []),
        ([join_of("m_of_n:2", 0, 3), join_of("any", 0, 3)], [FailWorkflow]),
    ],
)
def test_a_branch_that_ends_may_settle_the_meeting_points(
    joins: list[JoinState], expected: list[type]
):
    planned = decide_branch_end("f", joins)
    assert [type(decision) for decision in planned.decisions] == expected


def test_the_first_meeting_point_that_is_met_goes_on_with_those_who_wait_there():
    (only,) = decide_branch_end("f", [join_of("all", 2, 3), join_of("all", 1, 3)]).decisions
    assert isinstance(only, ActivateFanIn)
    assert (only.fork, only.merged_token_ids) == ("f", ("a0", "a1"))


def test_a_fork_of_which_all_branches_failed_fails_with_the_first_of_them():
    failure = FailWorkflow(error="no", name="Refused")
    assert decide_branch_end("f", [join_of("all", 0, 3)], failure).decisions == (failure,)
    assert decide_branch_end("f", [join_of("all", 0, 2)], failure).decisions == ()
    (met,) = decide_branch_end("f", [join_of("all", 1, 3)], failure).decisions
    assert isinstance(met, ActivateFanIn)


def test_an_arrival_waits_while_another_meeting_point_may_be_met():
    counts = Counts(total=3, completed=1, terminal=2)
    quorum = meeting(strategy="m_of_n:3")
    planned = decide_synchronization(quorum, arrived(0), counts, others=[join_of("all", 1, 2)])
    assert planned.decisions == (MarkWaiting(token_id="a0"),)
    (only,) = decide_synchronization(quorum, arrived(0), counts).decisions
    assert isinstance(only, FailWorkflow)


def test_a_timeout_fails_the_run_by_default():
    planned = decide_timeout(meeting(timeoutMs=5000), [arrived(0), arrived(2)])
    *late, failure = planned.decisions
    assert late == [
        UpdateTokenStatus(token_id="a0", status=TokenStatus.TIMED_OUT),
        UpdateTokenStatus(token_id="a2", status=TokenStatus.TIMED_OUT),
    ]
    assert isinstance(failure, FailWorkflow)
    assert failure.name == "SynchronizationTimeoutError"
    assert "sibling group 'judges' at 'tally': waited 5000 ms, 2 arrived" in failure.error


def test_a_timeout_may_go_on_with_those_who_are_there():
    result = meeting(timeoutMs=5000, onTimeout="proceed_with_available")
    (only,) = decide_timeout(result, [arrived(0), arrived(2)]).decisions
    assert isinstance(only, ActivateFanIn)
    assert only.merged_token_ids == ("a0", "a2")
    assert decide_timeout(result, []).decisions == ()
    assert decide_timeout(graph_of(review()).transition("t1"), [arrived(0)]).decisions == ()


def test_a_timeout_counts_from_the_first_arrival_and_0_is_none():
    assert timeout_at_ms(meeting(timeoutMs=5000), 1_000) == 6_000
    assert timeout_at_ms(meeting(timeoutMs=0), 1_000) is None
    assert timeout_at_ms(meeting(), 1_000) is None


def arrival(index: int, vote: object = None, transition: str = "t2", **counts: int) -> Arrival:
    return Arrival(
        token_id=f"a{index}",
        branch_index=index,
        transition_ref=transition,
        taken={"t1": 1, transition: 1} | counts,
        output={} if vote is None else {"vote": vote},
    )


def test_who_waits_at_another_meeting_point_of_the_fork_completes():
    result = graph_of(review())
    planned = decide_continuation(
        result, result.transition("t2"), FORK, [arrival(0)], elsewhere=["c1"], failed_branches=1
    )
    complete, create = planned.decisions
    assert complete == CompleteTokens(token_ids=("a0", "c1"))
    assert isinstance(create, CreateToken)
    assert isinstance(create.params, Continuation)
    assert create.params.failed == 1


def test_those_who_met_complete_the_others_are_cancelled_and_one_goes_on():
    result = graph_of(review(strategy="m_of_n:2", merge=merged("append")))
    planned = decide_continuation(
        result,
        result.transition("t2"),
        FORK,
        [arrival(2, "no", retry=3), arrival(0, "yes")],
        in_flight=["b1"],
    )
    complete, cancel, merge, create = planned.decisions
    assert complete == CompleteTokens(token_ids=("a2", "a0"))
    assert cancel == CancelTokens(token_ids=("b1",), reason="fan-in activated before completion")
    assert merge == SetContext(path="state.votes", value=["yes", "no"])
    assert isinstance(create, CreateToken)
    assert create.params.node_ref == "tally"
    assert create.params.parent_token_id == "t0"
    assert (create.params.path_id, create.params.fork) == ("root", None)
    assert (create.params.branch_index, create.params.branch_total) == (0, 1)
    # All ways that any of them came by, so that a loop around a fork has its limit.
    assert create.params.iteration_counts == {"loop": 2, "t1": 1, "t2": 1, "retry": 3}
    assert isinstance(create.params, Continuation)
    assert (create.params.taken, create.params.failed) == ({"t1": 1, "t2": 1, "retry": 3}, 0)


def test_a_fork_within_a_branch_goes_on_in_that_branch():
    origin = Token(
        id="t0",
        node_ref="start",
        path_id="root.x.1",
        sibling_group="outer",
        branch_index=1,
        branch_total=2,
        fork="o",
    )
    target = {"source": "_branch.output.vote", "target": "output.votes", "strategy": "collect"}
    result = graph_of(review(merge=target))
    fork = Fork(id="f", group="judges", total=1, origin=origin)
    planned = decide_continuation(
        result, result.transition("t2"), fork, [arrival(0, 7)], enclosing_output={"kept": 1}
    )
    _, merge, create = planned.decisions
    assert merge == ApplyBranchOutput(token_id="t0", output={"kept": 1, "votes": [7]})
    assert isinstance(create, CreateToken)
    params = create.params
    assert (params.path_id, params.sibling_group, params.branch_index, params.fork) == (
        "root.x.1",
        "outer",
        1,
        "o",
    )


def test_a_fork_without_branches_merges_nothing_and_counts_its_ways():
    result = graph_of(review(merge=merged("append")))
    planned = decide_continuation(result, result.transition("t2"), FORK, [], came_by=["t1"])
    merge, create = planned.decisions
    assert merge == SetContext(path="state.votes", value=[])
    assert isinstance(create, CreateToken)
    assert create.params.iteration_counts == {"loop": 2, "t1": 1, "t2": 1}


def two_ways(source: str) -> Graph:
    other = {"source": source, "target": "state.votes", "strategy": "collect"}
    return graph(
        [node("start"), node("a"), node("b"), node("tally")],
        [
            way("f1", "start", "a", siblingGroup="judges"),
            way("f2", "start", "b", siblingGroup="judges"),
            way("t2", "a", "tally", synchronization=joined(merge=merged("collect"))),
            way("t3", "b", "tally", synchronization=joined(merge=other)),
        ],
    )


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_branches_that_come_by_other_ways_are_merged_as_those_say(order: Sequence[int]):
    result = two_ways("_branch.output.vote.by")
    arrivals = [arrival(0, "x"), arrival(1, {"by": "y"}, "t3"), arrival(2, "z")]
    planned = decide_continuation(
        result, result.transition("t3"), FORK, [arrivals[index] for index in order]
    )
    assert planned.decisions[1] == SetContext(path="state.votes", value=["x", "y", "z"])


def test_a_branch_that_arrives_twice_counts_once():
    result = graph_of(review(merge=merged("collect")))
    planned = decide_continuation(
        result, result.transition("t2"), FORK, [arrival(0, "x"), arrival(0, "x"), arrival(1, "y")]
    )
    assert planned.decisions[1] == SetContext(path="state.votes", value=["x", "y"])


def test_the_output_of_a_branch_is_a_list_of_what_left_its_nested_forks():
    result = graph_of(review(merge={**merged("collect"), "source": "_branch.output"}))

    def left(index: int, *inner: int) -> Arrival:
        path = tuple((7 + level, nth) for level, nth in enumerate(inner))
        return msgspec.structs.replace(arrival(index, inner), inner=path)

    planned = decide_continuation(
        result,
        result.transition("t2"),
        FORK,
        [left(1, 1), left(0, 1, 0), left(1, 0), left(0, 0, 1), left(0, 0, 0)],
    )
    votes = [
        [[{"vote": (0, 0)}, {"vote": (0, 1)}], [{"vote": (1, 0)}]],
        [{"vote": (0,)}, {"vote": (1,)}],
    ]
    assert planned.decisions[1] == SetContext(path="state.votes", value=votes)


def test_outputs_that_cannot_be_merged_fail_the_run():
    result = graph_of(review(merge=merged("merge_object")))
    planned = decide_continuation(
        result, result.transition("t2"), FORK, [arrival(0, {"a": 1}), arrival(1, 5)]
    )
    (only,) = planned.decisions
    assert isinstance(only, FailWorkflow)
    assert only.error.startswith("expected objects to merge, found 5 in branch 1")
