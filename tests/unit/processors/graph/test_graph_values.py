"""Values: mappings, merges, the start and the end of a run, and decisions put together."""

from typing import Any

import pytest

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.context import Branch, Context, Scope, set_path
from headwater.processors.graph.data_flow import (
    BranchOutput,
    decide_completion,
    map_input,
    map_output,
    merge_branches,
)
from headwater.processors.graph.definition import Merge
from headwater.processors.graph.graph import graph_of
from headwater.processors.graph.planning import (
    ApplyBranchOutput,
    CompleteWorkflow,
    CreateToken,
    FailWorkflow,
    InitializeWorkflow,
    SetContext,
    Token,
    TokenParams,
)
from headwater.processors.graph.routing import decide_start
from tests.unit.processors.graph.graphs import graph, node, review

OUTSIDE = Token(id="t", node_ref="a")
INSIDE = Token(id="t", node_ref="a", sibling_group="g", branch_index=1, branch_total=2, fork="f")


def context(**sections: Any) -> Context:  # noqa: ANN401
    return Context(
        input=sections.get("input", {}),
        state=sections.get("state", {}),
        output=sections.get("output", {}),
    )


def test_an_input_mapping_gives_what_its_expressions_give():
    result = graph(
        [
            node(
                "a",
                inputMapping={
                    "judge": "input.judges[_branch.index]",
                    "past": "input.judges[9]",
                    "order.total": "state.total + 1",
                    "order.own": "_branch.output.vote",
                },
            )
        ]
    )
    scope = Scope(
        context(input={"judges": ["x", "y"]}, state={"total": 2}), Branch(1, 2, {"vote": "no"})
    )
    assert map_input(result, "a", scope) == {
        "judge": "y",
        "past": None,
        "order": {"total": 3, "own": "no"},
    }


def test_an_error_in_a_mapping_quotes_the_expression_and_says_where():
    result = graph([node("a", inputMapping={"x": "1 / state.zero"})])
    fault = map_input(result, "a", Scope(context(state={"zero": 0})))
    assert isinstance(fault, EvaluationProblem)
    assert fault.message == (
        "the expression `1 / state.zero` failed: INVALID_ARGUMENT: divide by zero "
        "(inputMapping of 'a', x)"
    )


OUTPUTS = node("a", outputMapping={"state.n": "result.n", "output.a.b": "result.n + state.n"})


def test_outside_of_a_fork_results_go_to_the_shared_context():
    planned = map_output(graph([OUTPUTS]), OUTSIDE, Scope(context(state={"n": 1})), {"n": 5})
    assert planned.decisions == (
        SetContext(path="state.n", value=5),
        SetContext(path="output.a.b", value=6),
    )


def test_in_a_fork_outputs_are_the_branchs_own():
    scope = Scope(context(state={"n": 1}), Branch(1, 2, {"kept": 0, "a": {"c": 3}}))
    planned = map_output(graph([OUTPUTS]), INSIDE, scope, {"n": 5})
    assert planned.decisions == (
        SetContext(path="state.n", value=5),
        ApplyBranchOutput(token_id="t", output={"kept": 0, "a": {"c": 3, "b": 6}}),
    )


def test_a_result_without_the_field_gives_null_and_another_error_fails_the_run():
    result = graph([node("a", outputMapping={"state.n": "result.n"})])
    assert map_output(result, OUTSIDE, Scope(context()), {}).decisions == (
        SetContext(path="state.n", value=None),
    )
    (only,) = map_output(result, OUTSIDE, Scope(context()), "text").decisions
    assert isinstance(only, FailWorkflow)
    assert "`result.n`" in only.error


@pytest.mark.parametrize(
    ("strategy", "votes", "expected"),
    [
        ("append", [[1], [2, 3], []], [1, 2, 3]),
        ("append", [[[1]], [[2]]], [[1], [2]]),
        ("append", [[1], 2], [[1], 2]),
        ("append", [1, None], [1, None]),
        ("append", [], []),
        ("collect", [[1], [2, 3]], [[1], [2, 3]]),
        ("collect", [], []),
        ("merge_object", [{"a": 1, "b": 1}, None, {"a": 2}], {"a": 2, "b": 1}),
        ("merge_object", [], {}),
        ("keyed_by_branch", ["x", None, {"y": 1}], {"0": "x", "1": None, "2": {"y": 1}}),
        ("keyed_by_branch", [], {}),
        ("last_wins", ["x", "y"], "y"),
        ("last_wins", ["x", None], None),
        ("last_wins", [], {}),
    ],
)
def test_branches_are_merged_in_the_order_of_their_indexes(
    strategy: str, votes: list[Any], expected: object
):
    merge = Merge(source="_branch.output.vote", target="state.votes", strategy=strategy)
    branches = [BranchOutput(index, {"vote": vote}) for index, vote in enumerate(votes)]
    for order in (branches, branches[::-1]):
        assert merge_branches(merge, order) == SetContext(path="state.votes", value=expected)


def test_a_branch_without_the_field_gives_null_and_is_never_the_last():
    branches = [BranchOutput(0, {"vote": 1}), BranchOutput(1, {})]
    for strategy, expected in [("collect", [1, None]), ("last_wins", 1)]:
        merge = Merge(source="_branch.output.vote", target="state.v", strategy=strategy)
        assert merge_branches(merge, branches) == SetContext(path="state.v", value=expected)


def test_the_whole_output_may_be_merged():
    merge = Merge(source="_branch.output", target="state.v", strategy="merge_object")
    merged = merge_branches(merge, [BranchOutput(1, {"b": 1}), BranchOutput(0, {"a": 1})])
    assert merged == SetContext(path="state.v", value={"a": 1, "b": 1})


def test_a_run_begins_with_its_input_and_one_token():
    assert decide_start(graph_of(review()), {"judges": []}).decisions == (
        InitializeWorkflow(input={"judges": []}),
        CreateToken(
            params=TokenParams(node_ref="start", parent_token_id=None, path_id="root"),
        ),
    )


def test_a_run_ends_with_what_its_mapping_gives_or_with_its_output_section():
    scope = Scope(context(state={"winner": "x"}, output={"y": 1}))
    assert decide_completion(graph_of(review()), scope).decisions == (
        CompleteWorkflow(output={"winner": "x"}),
    )
    assert decide_completion(graph([node("a")]), scope).decisions == (
        CompleteWorkflow(output={"y": 1}),
    )
    assert decide_completion(graph_of(review()), Scope(context())).decisions == (
        CompleteWorkflow(output={"winner": None}),
    )


def test_the_input_is_converted_once_for_all_states():
    first = context(input={"judges": ["x"]}, state={"n": 1})
    second = first.with_changes(state={"n": 2})
    result = graph([node("a", inputMapping={"n": "state.n", "judge": "input.judges[0]"})])
    assert map_input(result, "a", Scope(first)) == {"n": 1, "judge": "x"}
    assert map_input(result, "a", Scope(second)) == {"n": 2, "judge": "x"}
    expression = result.mappings("a").inputs[1][1]
    assert first.facts_for(expression) is second.facts_for(expression)


def test_a_path_is_set_in_a_copy():
    before = {"a": {"b": 1}, "c": 2}
    assert set_path(before, "a.d.e", 3) == {"a": {"b": 1, "d": {"e": 3}}, "c": 2}
    assert set_path(before, "c.x", 3) == {"a": {"b": 1}, "c": {"x": 3}}
    assert before == {"a": {"b": 1}, "c": 2}
