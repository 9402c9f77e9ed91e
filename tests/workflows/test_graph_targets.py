"""Paths and names of graph definitions have limits, and no value gets too deep by being mapped."""

import json
from typing import Any

import pytest

from headwater import WorkflowTest
from headwater.processors.graph.context import SEGMENTS_MAX, is_deeper
from headwater.processors.graph.definition import DefinitionInvalid
from headwater.processors.graph.graph import graph_of
from headwater.processors.graph.validation import NAME_MAX, REF_MAX
from headwater.processors.runs.limits import WORKFLOW_NAME_MAX
from headwater.schemas.history import NESTING_MAX
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, graph, node, outcome, play

TOO_LONG = ".".join(["a"] * (SEGMENTS_MAX + 1))
LONGEST = ".".join(["a"] * SEGMENTS_MAX)
#: The longest behind a section of the shared context.
WITHIN = ".".join(["a"] * (SEGMENTS_MAX - 1))
ODD = (TOO_LONG, ".".join(["a"] * 3_000), "", ".", "a..b", "a.", "\ud800")


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def meeting(target: str) -> dict[str, Any]:
    """Two branches that meet, and collect their outputs at a target."""
    merge = {"source": "_branch.output.n", "target": target, "strategy": "collect"}
    joins = {"strategy": "all", "siblingGroup": "g", "merge": merge}
    return graph(
        [node("start"), node("b", outputMapping={"output.n": "input"}), node("end")],
        [
            edge("start", "b", siblingGroup="g", spawnCount=2),
            edge("b", "end", synchronization=joins),
        ],
    )


def problems(definition: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionInvalid) as result:
        graph_of(definition)
    return [(problem.path, problem.message) for problem in result.value.problems]


@pytest.mark.parametrize(
    "target", [TOO_LONG, ".".join(["a"] * 3_000), "", ".", "a..b", "a.", "\ud800"]
)
def test_a_target_of_any_mapping_is_checked(target: str):
    places = {
        "nodes[0].inputMapping": graph([node("a", inputMapping={target: "1"})], []),
        "nodes[0].outputMapping": graph([node("a", outputMapping={f"state.{target}": "1"})], []),
        "outputMapping": graph([node("a")], [], outputMapping={target: "1"}),
        "transitions[1].synchronization.merge.target": meeting(f"output.{target}"),
    }
    for position, definition in places.items():
        ((path, message),) = problems(definition)
        assert path.startswith(position)
        assert message.startswith("expected ")
        assert len(message) < 500


def test_the_source_of_a_merge_has_as_many_parts_at_most():
    definition = meeting("state.x")
    definition["transitions"][1]["synchronization"]["merge"]["source"] = (
        f"_branch.output.{TOO_LONG}"
    )
    ((path, message),) = problems(definition)
    assert path == "transitions[1].synchronization.merge.source"
    assert len(message) < 500


def long_names() -> dict[str, dict[str, Any]]:
    long, plain = "r" * (NAME_MAX + 1), node("a")
    item = {"collection": "[]", "itemVar": long}
    return {
        "nodes[0].ref": graph([node(long)], []),
        "nodes[0].task": graph([node("a", long)], []),
        "nodes[0].subworkflow": graph([{"ref": "a", "subworkflow": long}], []),
        "transitions[0].ref": graph([plain], [{**edge("a", "a"), "ref": long}]),
        "transitions[0].siblingGroup": graph([plain], [edge("a", "a", siblingGroup=long)]),
        "transitions[0].foreach.itemVar": graph([plain], [edge("a", "a", foreach=item)]),
    }


@pytest.mark.parametrize("place", long_names())
def test_a_name_that_keys_and_rows_hold_has_a_maximum_length(place: str):
    ((path, message),) = problems(long_names()[place])
    assert path == place
    if place.endswith(("task", "subworkflow")):
        assert f"of 1 to {WORKFLOW_NAME_MAX} characters" in message
    else:
        most = REF_MAX if place.endswith(".ref") else NAME_MAX
        assert f"at most {most} characters, found {NAME_MAX + 1}" in message


def test_a_name_that_no_record_can_hold_is_refused():
    ((path, message),) = problems(graph([node("\ud800")], []))
    assert (path, message) == ("nodes[0].ref", r"expected text that UTF-8 can hold, found '\ud800'")
    ((path, message),) = problems(graph([node("a\0")], []))
    assert (path, message) == (
        "nodes[0].ref",
        r"expected a name without control characters, found 'a\x00'",
    )


@pytest.mark.parametrize(
    "definition",
    [
        graph([node("a", inputMapping={LONGEST: "input"})], []),
        graph([node("a", outputMapping={f"state.{WITHIN}": "input"})], []),
        graph([node("a", outputMapping={f"output.{WITHIN}": "input"})], []),
        graph([node("a")], [], outputMapping={LONGEST: "input"}),
        meeting(f"state.{WITHIN}"),
        meeting(f"output.{WITHIN}"),
    ],
    ids=["input", "state", "output", "graph", "merge into state", "merge into output"],
)
@pytest.mark.parametrize("levels", [NESTING_MAX - SEGMENTS_MAX - 1, NESTING_MAX - 1])
def test_no_mapping_makes_a_value_deeper_than_values_may_be(
    definition: dict[str, Any], levels: int
):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, output, error = await outcome(instance)
        deepest = (await instance.history()).tokens[0].input
        assert not is_deeper([output, deepest], NESTING_MAX + 1)
        if levels + SEGMENTS_MAX < NESTING_MAX:
            assert status == "complete"
        else:
            assert status == "errored"
            assert error is not None
            assert f"expected at most {NESTING_MAX} levels" in error[1]

    play(definition, scenario, nested(levels))


@pytest.mark.parametrize("type_", [None, "number"])
def test_writing_below_a_number_replaces_it_unless_the_schema_refuses_that(type_: str | None):
    declared = {"type": "object", "properties": {"total": {"type": type_} if type_ else {}}}
    definition = graph(
        [
            node("a", outputMapping={"state.total": "5"}),
            node("b", outputMapping={"state.total.net": "4"}),
        ],
        [edge("a", "b")],
        contextSchema=declared,
        outputMapping={"total": "state.total"},
    )

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        status, output, error = await outcome(instance)
        if type_ is None:
            assert (status, output) == ("complete", {"total": {"net": 4}})
        else:
            assert status == "errored"
            assert error is not None
            assert "total" in error[1]

    play(definition, scenario, {})


def test_values_at_the_limit_are_told_from_those_beyond_it():
    assert not is_deeper(nested(5), 5)
    assert is_deeper(nested(6), 5)
    assert is_deeper({"a": {}}, 1)
    assert not is_deeper({"a": 1}, 1)
    assert not is_deeper("[[[[", 0)
    assert not is_deeper(json.loads("[" * 128 + "]" * 128), NESTING_MAX)
