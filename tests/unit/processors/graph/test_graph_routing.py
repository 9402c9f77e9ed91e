"""Routing: which tokens follow one that completed."""

from collections.abc import Mapping
from typing import Any

import pytest

from headwater.processors.graph.context import Branch, Context, Scope
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.planning import (
    ActivateFanIn,
    CreateToken,
    FailWorkflow,
    Fork,
    Planned,
    Token,
    TokenParams,
)
from headwater.processors.graph.routing import decide_routing
from headwater.processors.graph.validation import BRANCHES_MAX
from tests.unit.processors.graph.graphs import graph, joined, node, review, way

A = Token(id="t1", node_ref="a")
NODES = [node("a"), node("b"), node("c")]


def routed(
    found: Graph,
    token: Token = A,
    forks: Mapping[str, Fork] | None = None,
    **context: Any,  # noqa: ANN401
) -> Planned:
    shared = Context(input=context.get("input", {}), state=context.get("state", {}), output={})
    scope = Scope(shared, context.get("branch"), context.get("items", {}))
    return decide_routing(found, token, scope, (forks or {}).__getitem__)


def created(planned: Planned) -> list[TokenParams]:
    params = [
        decision.params for decision in planned.decisions if isinstance(decision, CreateToken)
    ]
    assert len(params) == len(planned.decisions)
    return params


def failure(planned: Planned) -> str:
    (only,) = planned.decisions
    assert isinstance(only, FailWorkflow)
    assert only.name == "ExpressionError"
    return only.error


def test_a_token_whose_node_leads_nowhere_is_followed_by_none():
    assert routed(graph(NODES)).decisions == ()


def test_a_transition_creates_one_token_of_the_same_branch():
    token = Token(
        id="t9",
        node_ref="a",
        path_id="root.x.2",
        sibling_group="g",
        branch_index=2,
        branch_total=5,
        iteration_counts={"t": 1, "u": 4},
        fork="f",
    )
    (params,) = created(routed(graph(NODES, [way("t", "a", "b")]), token))
    assert params == TokenParams(
        node_ref="b",
        parent_token_id="t9",
        path_id="root.x.2",
        sibling_group="g",
        branch_index=2,
        branch_total=5,
        iteration_counts={"t": 2, "u": 4},
        fork="f",
        transition_ref="t",
    )


@pytest.mark.parametrize(
    ("ways", "reached"),
    [
        # The lowest number is tried first, wherever it stands in the document.
        ([("t1", "b", 2, None), ("t2", "c", 1, None)], ["c"]),
        # All matches of the first tier that has any, in the order of the document.
        ([("t1", "b", 1, None), ("t2", "c", 1, None)], ["b", "c"]),
        ([("t1", "b", 1, "state.n > 1"), ("t2", "c", 1, "state.n > 9")], ["b"]),
        ([("t1", "b", 1, "state.n > 9"), ("t2", "c", 2, "state.n > 1")], ["c"]),
        ([("t1", "b", -1, "state.n > 9"), ("t2", "c", 0, "state.n > 10")], []),
        # A missing field makes a condition false, unless CEL absorbs it.
        ([("t1", "b", 1, "state.missing > 1"), ("t2", "c", 2, None)], ["c"]),
        ([("t1", "b", 1, "state.list[7] == 1"), ("t2", "c", 2, None)], ["c"]),
        ([("t1", "b", 1, "state.missing > 1 || true")], ["b"]),
        ([("t1", "b", 1, "state.missing > 1 && false")], []),
    ],
)
def test_the_first_tier_with_a_match_wins(
    ways: list[tuple[str, str, int, str | None]], reached: list[str]
):
    result = graph(
        NODES, [way(ref, "a", to, priority=tier, condition=when) for ref, to, tier, when in ways]
    )
    planned = routed(result, state={"n": 5, "list": []})
    assert [params.node_ref for params in created(planned)] == reached


@pytest.mark.parametrize(
    "condition", ["1 / state.zero == 1", "state.n + 'a' == 'b'", "state.n", "state.text.field == 1"]
)
def test_an_error_in_a_condition_fails_the_run_and_quotes_it(condition: str):
    result = graph(NODES, [way("t", "a", "b", condition=condition)])
    planned = routed(result, state={"n": 1, "zero": 0, "text": "x"})
    assert f"the expression `{condition}` failed: " in failure(planned)


def test_the_limit_of_a_loop_comes_before_its_condition():
    result = graph(
        NODES,
        [
            way("t", "a", "b", condition="1 / 0 == 1", loopConfig={"maxIterations": 2}),
            way("u", "a", "c", priority=1),
        ],
    )
    token = Token(id="t1", node_ref="a", iteration_counts={"t": 2})
    planned = routed(result, token)
    assert [params.node_ref for params in created(planned)] == ["c"]
    assert "decision.routing.loop_limit_reached" in {event.type for event in planned.events}
    assert "divide by zero" in failure(routed(result, Token(id="t1", node_ref="a")))


def test_a_spawn_count_forks_and_each_branch_has_its_path():
    result = graph(NODES, [way("t", "a", "b", spawnCount=3, siblingGroup="g")])
    branches = created(routed(result))
    assert [branch.path_id for branch in branches] == ["root.a.0", "root.a.1", "root.a.2"]
    assert [branch.branch_index for branch in branches] == [0, 1, 2]
    assert {(branch.branch_total, branch.sibling_group, branch.fork) for branch in branches} == {
        (3, "g", "t1/g")
    }


def test_a_fork_without_a_group_is_a_fork_of_its_own():
    result = graph(NODES, [way("t", "a", "b", spawnCount=2), way("u", "a", "c", spawnCount=1)])
    first, second, third = created(routed(result))
    assert (first.fork, first.sibling_group, second.path_id) == ("t1:t", None, "root.a.1")
    assert (third.fork, third.path_id, third.branch_total) == (None, "root", 1)


def test_transitions_that_name_one_group_are_one_fork():
    result = graph(
        NODES,
        [
            way("t", "a", "b", siblingGroup="g"),
            way("u", "a", "c", siblingGroup="g", foreach={"collection": "[7, 8]", "itemVar": "n"}),
        ],
    )
    branches = created(routed(result))
    assert [(branch.node_ref, branch.branch_index, branch.item) for branch in branches] == [
        ("b", 0, None),
        ("c", 1, 7),
        ("c", 2, 8),
    ]
    assert {(branch.branch_total, branch.fork) for branch in branches} == {(3, "t1/g")}


def test_foreach_has_a_branch_for_each_item():
    branches = created(
        routed(graph_of(review()), Token(id="t1", node_ref="start"), input={"judges": ["x", {}]})
    )
    assert [(branch.item_var, branch.item) for branch in branches] == [
        ("judge", "x"),
        ("judge", {}),
    ]


@pytest.mark.parametrize("judges", [None, "text", {"a": 1}, 3, True])
def test_foreach_over_anything_but_a_list_fails_the_run_and_quotes_it(judges: object):
    start = Token(id="t1", node_ref="start")
    reported = failure(routed(graph_of(review()), start, input={"judges": judges}))
    assert "the expression `input.judges` has to give a list, found" in reported


def test_foreach_over_what_is_missing_fails_the_run_too():
    reported = failure(routed(graph_of(review()), Token(id="t1", node_ref="start")))
    assert "the expression `input.judges` has to give a list, found null" in reported


def test_a_collection_of_a_million_items_fails_the_run_and_quotes_it():
    start = Token(id="t1", node_ref="start")
    reported = failure(
        routed(graph_of(review()), start, input={"judges": [0] * (BRANCHES_MAX + 1)})
    )
    assert "the expression `input.judges` has to give a list of at most 100000 items" in reported


def test_an_empty_list_spawns_nothing():
    start = Token(id="t1", node_ref="start")
    assert routed(graph_of(review()), start, input={"judges": []}).decisions == ()


def test_an_empty_list_goes_on_through_the_meeting_point_if_it_says_so():
    data = review()
    data["transitions"][0]["foreach"]["onEmpty"] = "fan_in"
    start = Token(id="t1", node_ref="start")
    (only,) = routed(graph_of(data), start, input={"judges": []}).decisions
    assert only == ActivateFanIn(
        node_ref="tally",
        fork="t1/judges",
        fan_in_path="judges:tally",
        transition_ref="t2",
        merged_token_ids=(),
        came_by=("t1",),
    )


def test_conditions_see_the_branch_and_its_item():
    result = graph(
        NODES,
        [
            way("f", "c", "a", foreach={"collection": "input", "itemVar": "judge"}),
            way("t", "a", "b", condition="judge.strict && _branch.index == 1"),
        ],
    )
    inside = {"branch": Branch(1, 2), "items": {"judge": {"strict": True}}}
    assert len(created(routed(result, **inside))) == 1
    assert created(routed(result, **inside | {"branch": Branch(0, 2)})) == []
    # Outside of its fork the item is an undeclared variable, and there is no branch.
    assert "undeclared variable judge" in failure(routed(result, branch=Branch(1, 2)))
    assert created(routed(result, items={"judge": {"strict": True}})) == []


def test_a_token_reaches_the_meeting_point_of_an_outer_fork_as_its_branch():
    outer = Fork(id="o", group="judges", total=4, origin=Token(id="t0", node_ref="start"))
    forked = Token(
        id="t1",
        node_ref="mid",
        path_id="root.start.3",
        sibling_group="judges",
        branch_index=3,
        branch_total=4,
        fork="o",
    )
    inner = Fork(id="i", group=None, total=2, origin=forked)
    token = Token(id="t2", node_ref="vote", path_id="x", branch_index=1, branch_total=2, fork="i")
    (params,) = created(routed(graph_of(review()), token, {"o": outer, "i": inner}))
    assert params.path_id == "root.start.3"
    assert (params.sibling_group, params.branch_index, params.branch_total, params.fork) == (
        "judges",
        3,
        4,
        "o",
    )


def test_a_token_outside_of_the_group_stays_where_it_is():
    (params,) = created(routed(graph_of(review()), Token(id="t2", node_ref="vote")))
    assert (params.fork, params.path_id, params.transition_ref) == (None, "root", "t2")


def test_routing_tells_what_it_tried():
    result = graph(NODES, [way("t", "a", "b", condition="false"), way("u", "a", "c", priority=1)])
    assert [event.type for event in routed(result).events] == [
        "decision.routing.start",
        "decision.routing.evaluate_transition",
        "decision.routing.evaluate_transition",
        "decision.routing.transition_matched",
        "decision.routing.complete",
    ]


def test_a_join_of_no_fork_of_the_tier_does_not_stop_the_others():
    result = graph(
        NODES,
        [
            way("f", "c", "a", siblingGroup="judges"),
            way("t", "a", "b", synchronization=joined()),
            way("u", "a", "c", foreach={"collection": "[]", "itemVar": "n"}),
        ],
    )
    assert [params.node_ref for params in created(routed(result))] == ["b"]
