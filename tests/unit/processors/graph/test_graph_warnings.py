"""Warnings about definitions, and contradictions that are refused."""

import time
from typing import Any

import pytest

from headwater import GraphWorkflow
from headwater.processors.graph.definition import DefinitionInvalid
from headwater.processors.graph.graph import graph_of

Edge = tuple[str, str, dict[str, Any]]
FORK: dict[str, Any] = {"siblingGroup": "A", "spawnCount": 3}


def join(strategy: str = "all", group: str = "A", **more: object) -> dict[str, Any]:
    return {"synchronization": {"strategy": strategy, "siblingGroup": group, **more}}


def merge(source: str = "v", target: str = "state.v", strategy: str = "append") -> dict[str, Any]:
    return {"merge": {"source": f"_branch.output.{source}", "target": target, "strategy": strategy}}


def definition(edges: list[Edge], **more: object) -> dict[str, Any]:
    refs = dict.fromkeys(["s", *(ref for begin, end, _ in edges for ref in (begin, end))])
    return {
        "name": "g",
        "initialNodeRef": "s",
        "nodes": [{"ref": ref, "task": "noop"} for ref in refs],
        "transitions": [
            {"ref": f"t{index}", "fromNodeRef": begin, "toNodeRef": end, **settings}
            for index, (begin, end, settings) in enumerate(edges)
        ],
        **more,
    }


def warnings(edges: list[Edge], **more: object) -> list[tuple[str, str]]:
    return [
        (warning.code, warning.path) for warning in graph_of(definition(edges, **more)).warnings
    ]


def problems(document: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionInvalid) as caught:
        graph_of(document)
    return [(problem.code, problem.path) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([("s", "a", {}), ("x", "a", {})], ("UNREACHABLE_NODE", "nodes[2]")),
        (
            [("s", "w", FORK), ("w", "j", join("m_of_n:4"))],
            ("QUORUM_TOO_LARGE", "transitions[1].synchronization.strategy"),
        ),
        (
            [("s", "w", join()), ("w", "x", FORK)],
            ("JOIN_NEVER_MET", "transitions[0].synchronization"),
        ),
        (
            [("s", "w", FORK), ("w", "j", join()), ("j", "k", join())],
            ("JOIN_NEVER_MET", "transitions[2].synchronization"),
        ),
        ([("s", "s", {})], ("CYCLE_WITHOUT_LIMIT", "transitions[0]")),
        (
            [("s", "a", {}), ("a", "b", {}), ("b", "a", {})],
            ("CYCLE_WITHOUT_LIMIT", "transitions[2]"),
        ),
        (
            [("s", "a", {}), ("a", "e", {"condition": "state.x"}), ("a", "a", {})],
            ("CYCLE_WITHOUT_LIMIT", "transitions[2]"),
        ),
        (
            [("s", "a", {}), ("s", "b", {}), ("a", "j", {}), ("b", "j", {}), ("j", "k", {})],
            ("RUNS_MORE_THAN_ONCE", "nodes[3]"),
        ),
        ([("s", "a", {}), ("s", "a", {})], ("RUNS_MORE_THAN_ONCE", "nodes[1]")),
        (
            [
                ("s", "a", FORK),
                ("s", "b", {"siblingGroup": "B"}),
                ("a", "j", join()),
                ("b", "j", join(group="B")),
            ],
            ("RUNS_MORE_THAN_ONCE", "nodes[3]"),
        ),
        (
            [
                ("s", "w", FORK),
                ("w", "a", {}),
                ("w", "b", {}),
                ("a", "c", {}),
                ("b", "c", {}),
                ("c", "j", join()),
            ],
            ("RUNS_MORE_THAN_ONCE", "nodes[4]"),
        ),
        ([("s", "a", {"condition": "false"})], ("NO_EFFECT", "transitions[0].condition")),
        ([("s", "a", {}), ("s", "b", {"priority": 1})], ("NO_EFFECT", "transitions[1]")),
        (
            [("s", "w", FORK), ("w", "j", join(onTimeout="proceed_with_available"))],
            ("NO_EFFECT", "transitions[1].synchronization.onTimeout"),
        ),
    ],
)
def test_a_part_without_the_expected_effect_is_a_warning(
    edges: list[Edge], expected: tuple[str, str]
):
    assert warnings(edges) == [expected]


@pytest.mark.parametrize(
    "edges",
    [
        [("s", "w", FORK), ("w", "j", join("m_of_n:3"))],
        [("s", "w", FORK), ("w", "a", {}), ("w", "b", {}), ("a", "j", join()), ("b", "j", join())],
        [
            ("s", "a", FORK),
            ("s", "b", FORK),
            ("a", "j", join("m_of_n:6")),
            ("b", "j", join("m_of_n:6")),
        ],
        [
            ("s", "a", {"condition": "state.x"}),
            ("s", "b", {"condition": "!state.x"}),
            ("a", "j", {}),
            ("b", "j", {}),
        ],
        [
            ("s", "a", {"condition": "state.x"}),
            ("s", "b", {"priority": 1}),
            ("a", "j", {}),
            ("b", "j", {}),
        ],
        [
            ("s", "a", {}),
            ("s", "b", {"condition": "state.x"}),
            ("a", "handler", {"on": "error"}),
            ("b", "handler", {"on": "error"}),
        ],
        [("s", "a", {}), ("a", "s", {"loopConfig": {"maxIterations": 3}})],
        [("s", "a", {}), ("a", "b", {"condition": "state.x"}), ("a", "s", {"priority": 1})],
        [
            ("s", "w", {"siblingGroup": "A", "foreach": {"collection": "[]", "itemVar": "x"}}),
            ("w", "j", join("m_of_n:9")),
        ],
        [
            ("s", "a", {}),
            ("s", "a", {"on": "error", "priority": 1}),
            ("s", "s", {"on": "error", "condition": "error.name == 'Busy'"}),
            ("a", "b", {"on": "error"}),
        ],
    ],
)
def test_usual_shapes_have_no_warnings(edges: list[Edge]):
    assert warnings(edges) == []


def test_a_node_that_joins_its_transitions_runs_once():
    document = definition([("s", "a", {}), ("s", "b", {}), ("a", "j", {}), ("b", "j", {})])
    (warning,) = graph_of(document).warnings
    assert '"join": "all"' in warning.message
    document["nodes"][3]["join"] = "all"
    assert graph_of(document).warnings == ()


@pytest.mark.parametrize(
    "last",
    [
        ("s", "j", {"priority": 1}),
        ("s", "j", {"on": "error"}),
        ("x", "j", {}),
        ("a", "j", {"condition": "false"}),
    ],
)
def test_a_node_joins_transitions_that_can_be_taken_together(last: Edge):
    edges: list[Edge] = [("s", "a", {"condition": "state.x"}), ("a", "b", {}), ("b", "j", {})]
    document = definition([*edges, ("s", "j", {"condition": "state.x"}), last])
    for node in document["nodes"]:
        if node["ref"] == "j":
            node["join"] = "all"
    path = f"nodes[{[node['ref'] for node in document['nodes']].index('j')}].join"
    reported = [(warning.code, warning.path) for warning in graph_of(document).warnings]
    assert ("JOIN_NEVER_MET", path) in reported


def test_unknown_keywords_and_formats_of_schemas_are_warnings():
    schema = {
        "type": "object",
        "requierd": ["a"],
        "x-owner": "sales",
        "properties": {"requierd": {"type": "string", "format": "datetime"}},
        "$defs": {"id": {"patern": "a"}},
    }
    assert warnings([], inputSchema=schema, outputSchema={"anyOf": [{"typ": "null"}]}) == [
        ("NO_EFFECT", "inputSchema.requierd"),
        ("NO_EFFECT", "inputSchema.properties.requierd.format"),
        ("NO_EFFECT", "inputSchema.$defs.id.patern"),
        ("NO_EFFECT", "outputSchema.anyOf[0].typ"),
    ]


def test_a_definition_in_python_has_its_warnings():
    nodes = [{"ref": "a", "task": "noop"}, {"ref": "b", "task": "noop"}]
    review = GraphWorkflow(name="review", initial_node_ref="a", nodes=nodes)
    (warning,) = review.warnings()
    assert (warning.code, warning.path) == ("UNREACHABLE_NODE", "nodes[1]")
    assert "'b'" in warning.message


def test_the_search_ends_for_large_graphs():
    edges: list[Edge] = [("s", "n0", {})]
    for index in range(2_000):
        edges += [(f"n{index}", f"{side}{index}", {}) for side in "ab"]
        edges += [(f"{side}{index}", f"n{index + 1}", {}) for side in "ab"]
    graph = graph_of(definition(edges))
    started = time.process_time()
    assert {warning.code for warning in graph.warnings} == {"RUNS_MORE_THAN_ONCE"}
    assert time.process_time() - started < 60


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"outputMapping": {"a": "1", "a.b": "2"}}, ("INVALID_TARGET", "outputMapping.a.b")),
        (
            {"nodes": [{"ref": "s", "task": "noop", "inputMapping": {"a.b.c": "1", "a.b": "2"}}]},
            ("INVALID_TARGET", "nodes[0].inputMapping.a.b.c"),
        ),
        (
            {
                "nodes": [
                    {
                        "ref": "s",
                        "task": "noop",
                        "outputMapping": {"state.a": "1", "state.a.b": "2"},
                    }
                ]
            },
            ("INVALID_TARGET", "nodes[0].outputMapping.state.a.b"),
        ),
        (
            {"nodes": [{"ref": "s", "task": "noop", "outputMapping": {"state.l[0]": "1"}}]},
            ("INVALID_TARGET", "nodes[0].outputMapping.state.l[0]"),
        ),
        (
            {"outputMapping": {".".join("a" * 33): "1"}},
            ("INVALID_TARGET", f"outputMapping.{'.'.join('a' * 33)}"),
        ),
        (
            {"nodes": [{"ref": "s", "task": "noop"}, {"ref": "r" * 129, "task": "noop"}]},
            ("INVALID_TARGET", "nodes[1].ref"),
        ),
        (
            {"nodes": [{"ref": "s", "subworkflow": "not a name!"}]},
            ("INVALID_DEFINITION", "nodes[0].subworkflow"),
        ),
        (
            {"nodes": [{"ref": "s", "task": ""}]},
            ("INVALID_DEFINITION", "nodes[0].task"),
        ),
    ],
)
def test_targets_and_names_that_cannot_work_are_refused(
    change: dict[str, Any], expected: tuple[str, str]
):
    assert problems({**definition([]), **change}) == [expected]


def test_what_is_at_a_limit_is_accepted():
    graph_of({**definition([]), "outputMapping": {".".join("a" * 32): "1", "ab": "1"}})
    graph_of(
        {
            **definition([]),
            "nodes": [{"ref": "s", "task": "noop"}, {"ref": "r" * 128, "task": "noop"}],
        }
    )


@pytest.mark.parametrize(
    ("first", "second", "third", "expected"),
    [
        (
            merge(),
            {},
            merge(strategy="collect"),
            ("INVALID_STRATEGY", "transitions[3].synchronization.merge.strategy"),
        ),
        (
            merge(),
            merge(),
            merge("u"),
            ("INVALID_STRATEGY", "transitions[3].synchronization.merge.source"),
        ),
        (
            merge(),
            {},
            merge(target="state.v.b"),
            ("INVALID_TARGET", "transitions[3].synchronization.merge.target"),
        ),
    ],
)
def test_merges_of_one_join_agree(
    first: dict[str, Any], second: dict[str, Any], third: dict[str, Any], expected: tuple[str, str]
):
    edges = [("s", "w", FORK), *(("w", "j", join(**more)) for more in (first, second, third))]
    assert problems(definition(edges)) == [expected]
