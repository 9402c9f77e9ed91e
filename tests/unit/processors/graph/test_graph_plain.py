"""The public face: plain dictionaries in, decisions with their types out, and `GraphWorkflow`."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import headwater
from tests.unit.processors.graph.graphs import review

TOKEN = {
    "id": "t1",
    "node_ref": "start",
    "status": "completed",
    "path_id": "root",
    "parent_token_id": None,
    "sibling_group": None,
    "branch_index": 0,
    "branch_total": 1,
    "iteration_counts": {},
}
CONTEXT = {"input": {"judges": ["x", "y"]}, "state": {"winner": "x"}, "output": {}}


def test_routing_gives_creates_with_params():
    planned = headwater.decide_routing(
        completed_token=TOKEN,
        run_id="r",
        node_ref="start",
        transitions=review()["transitions"],
        context=CONTEXT,
    )
    assert [decision["type"] for decision in planned.decisions] == ["CREATE_TOKEN", "CREATE_TOKEN"]
    assert planned.decisions[1]["params"] == {
        "node_ref": "vote",
        "parent_token_id": "t1",
        "path_id": "root.start.1",
        "sibling_group": "judges",
        "branch_index": 1,
        "branch_total": 2,
        "iteration_counts": {"t1": 1},
        "fork": "t1/judges",
        "transition_ref": "t1",
        "item_var": "judge",
        "item": "y",
        "run_id": "r",
    }
    assert planned.events[0]["type"] == "decision.routing.start"


@pytest.mark.parametrize(
    ("completed", "decision"),
    [(1, {"type": "MARK_WAITING", "token_id": "a1"}), (2, None)],
)
def test_synchronization_waits_or_activates(completed: int, decision: object):
    planned = headwater.decide_synchronization(
        token=TOKEN | {"id": "a1", "sibling_group": "judges", "branch_total": 2},
        transition=review()["transitions"][1],
        sibling_counts={"total": 2, "completed": completed, "failed": 0, "terminal": completed},
        run_id="r",
    )
    (only,) = planned.decisions
    if decision is None:
        assert (only["type"], only["node_ref"], only["run_id"]) == ("ACTIVATE_FAN_IN", "tally", "r")
    else:
        assert only == decision


def test_a_timeout_a_merge_and_an_end():
    waiting = [TOKEN | {"id": "a1", "sibling_group": "judges"}]
    transition = review(timeoutMs=5)["transitions"][1]
    timed_out = headwater.decide_timeout(waiting_tokens=waiting, transition=transition, run_id="r")
    assert [decision["type"] for decision in timed_out.decisions] == [
        "UPDATE_TOKEN_STATUS",
        "FAIL_WORKFLOW",
    ]
    merged = headwater.merge_branches(
        branches=[
            {"branch_index": 1, "output": {"v": [2]}},
            {"branch_index": 0, "output": {"v": [1]}},
        ],
        merge={"source": "_branch.output.v", "target": "state.v", "strategy": "append"},
    )
    assert merged.decisions == [{"type": "SET_CONTEXT", "path": "state.v", "value": [1, 2]}]
    ended = headwater.extract_output(mapping={"w": "state.winner"}, context=CONTEXT)
    assert ended.decisions == [{"type": "COMPLETE_WORKFLOW", "output": {"w": "x"}}]


def test_what_contradicts_itself_is_refused_with_code_and_path():
    transition = review(strategy="most")["transitions"][1]
    with pytest.raises(ValueError, match=r"INVALID_STRATEGY at transitions\[0\]\.synchronization"):
        headwater.decide_routing(
            completed_token=TOKEN,
            run_id="r",
            node_ref="vote",
            transitions=[transition],
            context=CONTEXT,
        )
    with pytest.raises(ValueError, match=r"INVALID_EXPRESSION at mapping\.w"):
        headwater.extract_output(mapping={"w": "stat.winner"}, context=CONTEXT)
    with pytest.raises(
        ValueError, match=r"INVALID_DEFINITION at transition: expected the field .ref."
    ):
        headwater.decide_timeout(waiting_tokens=[], transition={}, run_id="r")


def test_a_graph_in_python_is_the_document_in_snake_case():
    built = headwater.GraphWorkflow(
        name="review",
        initial_node_ref="start",
        nodes=[
            {"ref": "start", "task": "noop"},
            {
                "ref": "vote",
                "task": "noop",
                "input_mapping": {"judge": "input.judges[_branch.index]"},
                "output_mapping": {"output.vote": "result.vote"},
            },
            {"ref": "tally", "task": "noop", "output_mapping": {"state.winner": "result.winner"}},
        ],
        transitions=[
            {
                "ref": "t1",
                "from_node_ref": "start",
                "to_node_ref": "vote",
                "sibling_group": "judges",
                "foreach": {"collection": "input.judges", "item_var": "judge"},
            },
            {
                "ref": "t2",
                "from_node_ref": "vote",
                "to_node_ref": "tally",
                "synchronization": {"strategy": "all", "sibling_group": "judges"},
            },
        ],
        output_mapping={"winner": "state.winner"},
    )
    assert built.to_dict() == review()
    assert built.graph().definition.name == built.name == "review"
    assert built.to_mermaid().startswith("flowchart TD")
    assert built.to_svg().startswith("<svg ")


def test_the_authors_own_names_keep_their_underscores():
    built = headwater.GraphWorkflow(
        name="g",
        initial_node_ref="a_b",
        input_schema={"properties": {"first_name": {"type": "string"}}},
        nodes=[
            {"ref": "a_b", "task": "noop", "input_mapping": {"first_name": "input.first_name"}},
            {"ref": "c", "task": "noop", "inputMapping": {"first_name": "input.first_name"}},
        ],
    )
    for node in built.to_dict()["nodes"]:
        assert node["inputMapping"] == {"first_name": "input.first_name"}
    assert "first_name" in built.to_dict()["inputSchema"]["properties"]


def test_a_task_is_an_authors_function_with_a_name():
    @headwater.task("ask_judge")
    def ask(given: dict[str, int]) -> dict[str, int]:
        """Asks."""
        return {"n": given["n"] + 1}

    assert (ask.name, ask.__doc__, ask({"n": 1})) == ("ask_judge", "Asks.", {"n": 2})
    with pytest.raises(ValueError, match="the name of a task"):
        headwater.task("no name")(print)
    with pytest.raises(TypeError, match='write @task\\("name"\\)'):
        headwater.task(print)


AT_NODE = TOKEN | {"id": "7", "node_ref": "vote", "status": "pending"}
NODE = {"ref": "vote", "task": "ask", "inputMapping": {"who": "judge.name", "n": "_branch.index"}}
IN_FORK = {"items": {"judge": {"name": "Ada"}}, "branch": {"index": 2, "total": 3}}
CHILD = {"ref": "bill", "subworkflow": "invoice", "timeoutMs": 5_000}


def test_a_dispatch_has_the_input_of_its_task():
    planned = headwater.decide_dispatch(
        token=AT_NODE, node=NODE, run_id="r", context=CONTEXT, **IN_FORK
    )
    assert planned.decisions == [
        {
            "type": "DISPATCH_TOKEN",
            "token_id": "7",
            "task": "ask",
            "attempt": 1,
            "input": {"who": "Ada", "n": 2},
        }
    ]
    failing = {**NODE, "inputMapping": {"n": "1 / 0"}}
    (failed,) = headwater.decide_dispatch(
        token=AT_NODE, node=failing, run_id="r", context=CONTEXT
    ).decisions
    assert (failed["type"], failed["name"]) == ("FAIL_WORKFLOW", "ExpressionError")


def test_a_child_is_waited_for_and_ends_with_an_output_an_error_or_in_time():
    at_node = AT_NODE | {"node_ref": "bill"}
    (waits,) = headwater.decide_dispatch(
        token=at_node, node=CHILD, run_id="r", context=CONTEXT, subworkflow_run_id="c"
    ).decisions
    assert waits == {
        "type": "MARK_WAITING_FOR_SUBWORKFLOW",
        "token_id": "7",
        "subworkflow_run_id": "c",
        "workflow": "invoice",
        "input": {},
        "timeout_ms": 5_000,
    }
    (resumed,) = headwater.decide_subworkflow_result(
        token=at_node, run_id="r", output={"paid": True}
    ).decisions
    output = {"paid": True}
    assert resumed == {"type": "RESUME_FROM_SUBWORKFLOW", "token_id": "7", "output": output}
    (failed,) = headwater.decide_subworkflow_result(
        token=at_node, run_id="r", error="no money"
    ).decisions
    assert failed == {"type": "FAIL_FROM_SUBWORKFLOW", "token_id": "7", "error": "no money"}
    in_time, late = (
        headwater.decide_subworkflow_timeout(
            token=at_node, node=CHILD, run_id="r", elapsed_ms=elapsed, subworkflow_run_id="c"
        )
        for elapsed in (4_999, 5_001)
    )
    assert not in_time.decisions
    assert late.decisions == [
        {
            "type": "TIMEOUT_SUBWORKFLOW",
            "token_id": "7",
            "subworkflow_run_id": "c",
            "timeout_ms": 5_000,
            "elapsed_ms": 5_001,
        }
    ]


def test_a_cancellation_is_of_the_tokens_that_live():
    tokens = [TOKEN, AT_NODE, AT_NODE | {"id": "8", "status": "waiting_for_siblings"}]
    planned = headwater.decide_cancel(tokens=tokens, run_id="r", reason="enough")
    assert planned.decisions == [
        {"type": "CANCEL_TOKENS", "token_ids": ["7", "8"], "reason": "enough"}
    ]
    assert not headwater.decide_cancel(tokens=[TOKEN], run_id="r").decisions


def test_conditions_in_a_fork_read_its_items_and_the_output_of_the_branch():
    transition = {
        "ref": "on",
        "fromNodeRef": "vote",
        "toNodeRef": "count",
        "condition": "judge.ok && _branch.output.vote == 'yes' && _branch.total == 3",
    }
    planned = headwater.decide_routing(
        completed_token=AT_NODE,
        run_id="r",
        node_ref="vote",
        transitions=[transition],
        context=CONTEXT,
        items={"judge": {"ok": True}},
        branch={"index": 0, "total": 3, "output": {"vote": "yes"}},
    )
    assert [decision["type"] for decision in planned.decisions] == ["CREATE_TOKEN"]
    (output,) = headwater.extract_output(
        mapping={"who": "judge.name", "at": "_branch.index"}, context=CONTEXT, **IN_FORK
    ).decisions
    assert output["output"] == {"who": "Ada", "at": 2}


def test_an_arrival_has_its_time_if_the_caller_names_it():
    at = datetime(2026, 7, 1, 8, tzinfo=UTC)
    planned = headwater.decide_synchronization(
        token=TOKEN | {"id": "a1", "sibling_group": "judges", "branch_total": 2},
        transition=review()["transitions"][1],
        sibling_counts={"total": 2, "completed": 1, "failed": 0, "terminal": 1},
        run_id="r",
        arrived_at=at,
    )
    arrived = {"type": "MARK_WAITING", "token_id": "a1", "arrived_at": "2026-07-01T08:00:00Z"}
    assert planned.decisions == [arrived]


def joined(**synchronization: object) -> dict[str, Any]:
    return review(**synchronization)["transitions"][1]


COUNTS = {"total": 2, "completed": 1, "failed": 0, "terminal": 1}
BRANCHES = [{"branch_index": 0, "output": {"v": 1}}]
MERGE = {"source": "_branch.output.v", "target": "state.v", "strategy": "collect"}


@pytest.mark.parametrize(
    ("planner", "arguments", "message"),
    [
        (
            headwater.decide_synchronization,
            {"token": TOKEN, "transition": joined(strategy="some"), "sibling_counts": COUNTS},
            "INVALID_STRATEGY at transition.synchronization.strategy",
        ),
        (
            headwater.decide_synchronization,
            {"token": TOKEN, "transition": joined(strategy="m_of_n:0"), "sibling_counts": COUNTS},
            "INVALID_STRATEGY at transition.synchronization.strategy",
        ),
        (
            headwater.decide_timeout,
            {"waiting_tokens": [TOKEN], "transition": joined(onTimeout="proceed")},
            "INVALID_STRATEGY at transition.synchronization.onTimeout",
        ),
        (
            headwater.merge_branches,
            {"branches": BRANCHES, "merge": {**MERGE, "strategy": "bogus"}},
            "INVALID_STRATEGY at merge.strategy",
        ),
        (
            headwater.merge_branches,
            {"branches": BRANCHES, "merge": {**MERGE, "target": "foo"}},
            "at merge.target",
        ),
        (
            headwater.merge_branches,
            {"branches": BRANCHES, "merge": {**MERGE, "source": "nonsense.v"}},
            "INVALID_EXPRESSION at merge.source",
        ),
        (
            headwater.decide_dispatch,
            {"token": AT_NODE, "node": {"ref": "a"}, "context": CONTEXT},
            "MISSING_OWNER at node",
        ),
        (
            headwater.decide_subworkflow_timeout,
            {"token": AT_NODE, "node": {**CHILD, "timeoutMs": 0}, "elapsed_ms": 1},
            "INVALID_DEFINITION at node.timeoutMs",
        ),
        (
            headwater.extract_output,
            {"mapping": {"a..b": "1"}, "context": CONTEXT},
            "at mapping.a..b",
        ),
        (
            headwater.extract_output,
            {"mapping": {"a": "1"}, "context": CONTEXT, "items": {"state": 1}},
            "INVALID_EXPRESSION at items.state",
        ),
        (
            headwater.decide_cancel,
            {"tokens": [], "branch": {"number": 1}},
            "INVALID_EXPRESSION at branch",
        ),
    ],
)
def test_planners_refuse_what_deploying_refuses(
    planner: Callable[..., object], arguments: dict[str, Any], message: str
):
    without_run = planner in {headwater.merge_branches, headwater.extract_output}
    run = {} if without_run else {"run_id": "r"}
    with pytest.raises(ValueError, match=re.escape(message)):
        planner(**arguments, **run)


TIMED = joined(timeoutMs=5_000, onTimeout="proceed_with_available")


@pytest.mark.parametrize(
    ("planner", "arguments"),
    [
        (
            headwater.decide_routing,
            {"completed_token": TOKEN, "node_ref": "start", "transitions": [], "context": CONTEXT},
        ),
        (
            headwater.decide_dispatch,
            {"token": AT_NODE, "node": {**NODE, "inputMapping": {}}, "context": CONTEXT},
        ),
        (
            headwater.decide_synchronization,
            {"token": TOKEN, "transition": joined(), "sibling_counts": COUNTS},
        ),
        (headwater.decide_timeout, {"waiting_tokens": [TOKEN], "transition": TIMED}),
        (headwater.decide_subworkflow_result, {"token": AT_NODE}),
        (
            headwater.decide_subworkflow_timeout,
            {"token": AT_NODE, "node": CHILD, "elapsed_ms": 1},
        ),
        (headwater.decide_cancel, {"tokens": [TOKEN]}),
        (headwater.merge_branches, {"branches": BRANCHES, "merge": MERGE}),
        (headwater.extract_output, {"mapping": {}, "context": CONTEXT}),
    ],
)
def test_all_planners_take_items_and_a_branch(
    planner: Callable[..., object], arguments: dict[str, Any]
):
    without_run = planner in {headwater.merge_branches, headwater.extract_output}
    run = {} if without_run else {"run_id": "r"}
    branch = {"index": 0, "total": 2, "output": {}}
    planner(**arguments, **run, items={"judge": 1}, branch=branch)
    with pytest.raises(ValueError, match=r"INVALID_EXPRESSION at items\.state"):
        planner(**arguments, **run, items={"state": 1})
    with pytest.raises(ValueError, match="INVALID_EXPRESSION at branch"):
        planner(**arguments, **run, branch={"number": 1})
