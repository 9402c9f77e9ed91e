"""The public face: plain dictionaries in, decisions with their types out, and `GraphWorkflow`."""

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
