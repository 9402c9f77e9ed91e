"""Definitions: what is read, what is refused, and how they are named."""

import json
import pickle
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from headwater.processors.graph.definition import (
    DefinitionInvalid,
    digest,
    read_definition,
    to_dict,
)
from headwater.processors.graph.graph import graph_of
from headwater.processors.runs.durations import LONGEST_MS
from headwater.processors.runs.limits import RETRIES_MAX
from tests.unit.processors.graph.graphs import document, joined, merged, node, review, way

Change: TypeAlias = Callable[[dict[str, Any]], object]


def problems(data: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionInvalid) as caught:
        graph_of(data)
    return [(problem.code, problem.path) for problem in caught.value.problems]


def test_a_definition_is_what_its_document_says_and_back():
    data = review(merge=merged("append"), timeoutMs=5000)
    assert to_dict(read_definition(data)) == data
    assert to_dict(read_definition(json.dumps(data).encode())) == data


def test_the_digest_is_of_the_content_and_not_of_how_it_was_written():
    data = review()
    same = {key: data[key] for key in reversed(data)} | {"inputSchema": None}
    same["transitions"][0]["priority"] = 0
    assert digest(read_definition(same)) == digest(read_definition(data))
    other = review(timeoutMs=1)
    assert digest(read_definition(other)) != digest(read_definition(data))


@pytest.mark.parametrize(
    ("change", "code", "path"),
    [
        (lambda d: d["nodes"].append(node("vote")), "DUPLICATE_NODE_REF", "nodes[3].ref"),
        (
            lambda d: d["transitions"].append(way("t1", "start", "tally")),
            "DUPLICATE_TRANSITION_REF",
            "transitions[2].ref",
        ),
        (lambda d: d.update(initialNodeRef="no"), "INVALID_NODE_REF", "initialNodeRef"),
        (
            lambda d: d["transitions"][0].update(fromNodeRef="no"),
            "INVALID_NODE_REF",
            "transitions[0].fromNodeRef",
        ),
        (
            lambda d: d["transitions"][1].update(toNodeRef="no"),
            "INVALID_NODE_REF",
            "transitions[1].toNodeRef",
        ),
        (
            lambda d: d["transitions"][1]["synchronization"].update(siblingGroup="jury"),
            "INVALID_SIBLING_GROUP",
            "transitions[1].synchronization.siblingGroup",
        ),
        (
            lambda d: d["transitions"][1].update(siblingGroup="judges"),
            "INVALID_SIBLING_GROUP",
            "transitions[1].synchronization",
        ),
        (
            lambda d: (
                d["transitions"].append(way("t3", "vote", "start", synchronization=joined()))
                or d["transitions"][0]["foreach"].update(onEmpty="fan_in")
            ),
            "INVALID_SIBLING_GROUP",
            "transitions[0].foreach.onEmpty",
        ),
        *(
            (
                lambda d, strategy=strategy: d["transitions"][1]["synchronization"].update(
                    strategy=strategy
                ),
                "INVALID_STRATEGY",
                "transitions[1].synchronization.strategy",
            )
            for strategy in ("most", "m_of_n", "m_of_n:0", "m_of_n:-1", "m_of_n:two", "", "ALL")
        ),
        (
            lambda d: d["transitions"][1]["synchronization"].update(onTimeout="wait"),
            "INVALID_STRATEGY",
            "transitions[1].synchronization.onTimeout",
        ),
        (
            lambda d: d["transitions"][1]["synchronization"].update(merge=merged("sum")),
            "INVALID_STRATEGY",
            "transitions[1].synchronization.merge.strategy",
        ),
        (
            lambda d: d["transitions"].append(
                way("t3", "start", "tally", synchronization=joined("any"))
            ),
            "INVALID_STRATEGY",
            "transitions[2].synchronization.strategy",
        ),
        (
            lambda d: d["transitions"][1]["synchronization"].update(
                merge=merged("append", "input.votes")
            ),
            "INVALID_EXPRESSION",
            "transitions[1].synchronization.merge.source",
        ),
        (
            lambda d: d["transitions"][0].update(condition="state.x <"),
            "INVALID_EXPRESSION",
            "transitions[0].condition",
        ),
        (
            lambda d: d["transitions"][0].update(condition="'a text'"),
            "INVALID_EXPRESSION",
            "transitions[0].condition",
        ),
        (
            lambda d: d["transitions"][0]["foreach"].update(collection="inputs.judges"),
            "INVALID_EXPRESSION",
            "transitions[0].foreach.collection",
        ),
        (
            lambda d: d["transitions"][0]["foreach"].update(itemVar="state"),
            "INVALID_EXPRESSION",
            "transitions[0].foreach.itemVar",
        ),
        (
            lambda d: d["nodes"][1]["inputMapping"].update(judge="shout(judge)"),
            "INVALID_EXPRESSION",
            "nodes[1].inputMapping.judge",
        ),
        (
            lambda d: d["nodes"][1]["inputMapping"].update(judge="result.vote"),
            "INVALID_EXPRESSION",
            "nodes[1].inputMapping.judge",
        ),
        (
            lambda d: d["nodes"][1]["outputMapping"].update({"input.x": "result"}),
            "INVALID_EXPRESSION",
            "nodes[1].outputMapping.input.x",
        ),
        (
            lambda d: d["outputMapping"].update(winner="("),
            "INVALID_EXPRESSION",
            "outputMapping.winner",
        ),
        (lambda d: d["nodes"][0].pop("task"), "MISSING_OWNER", "nodes[0]"),
        (lambda d: d["nodes"][0].update(subworkflow="bill"), "MULTIPLE_OWNERS", "nodes[0]"),
        (lambda d: d.update(name="a b"), "INVALID_DEFINITION", "name"),
        (
            lambda d: d.update(inputSchema={"type": "objct"}),
            "INVALID_DEFINITION",
            "inputSchema",
        ),
        (
            lambda d: d.update(outputSchema={"$ref": "https://example.com/other"}),
            "INVALID_DEFINITION",
            "outputSchema",
        ),
        (lambda d: d.pop("nodes"), "INVALID_DEFINITION", "$"),
        (lambda d: d.update(nodes="many"), "INVALID_DEFINITION", "nodes"),
        (lambda d: d["nodes"][0].update(tsk="noop"), "INVALID_DEFINITION", "nodes[0]"),
        (lambda d: d["nodes"][0].update(timeoutMs=0), "INVALID_DEFINITION", "nodes[0].timeoutMs"),
        (
            lambda d: d["nodes"][0].update(retries={"limit": -1}),
            "INVALID_DEFINITION",
            "nodes[0].retries.limit",
        ),
        (
            lambda d: d["nodes"][0].update(retries={"limit": 1, "delay": "soon"}),
            "INVALID_DEFINITION",
            "nodes[0].retries.delay",
        ),
        (
            lambda d: d["nodes"][0].update(retries={"limit": 1, "backoff": "random"}),
            "INVALID_DEFINITION",
            "nodes[0].retries.backoff",
        ),
        (
            lambda d: d["transitions"][0].update(spawnCount=2),
            "INVALID_DEFINITION",
            "transitions[0].spawnCount",
        ),
        (
            lambda d: d["transitions"][1].update(spawnCount=0),
            "INVALID_DEFINITION",
            "transitions[1].spawnCount",
        ),
        (
            lambda d: d["transitions"][1].update(loopConfig={"maxIterations": 0}),
            "INVALID_DEFINITION",
            "transitions[1].loopConfig.maxIterations",
        ),
        (
            lambda d: d["transitions"][0]["foreach"].update(onEmpty="stop"),
            "INVALID_DEFINITION",
            "transitions[0].foreach.onEmpty",
        ),
        (
            lambda d: d["transitions"][1]["synchronization"].update(timeoutMs=-1),
            "INVALID_DEFINITION",
            "transitions[1].synchronization.timeoutMs",
        ),
        (
            lambda d: d["transitions"][1]["synchronization"].update(timeoutMs=LONGEST_MS + 1),
            "INVALID_DEFINITION",
            "transitions[1].synchronization.timeoutMs",
        ),
        (
            lambda d: d["nodes"][0].update(timeoutMs=2**63),
            "INVALID_DEFINITION",
            "nodes[0].timeoutMs",
        ),
        (
            lambda d: d["nodes"][0].update(retries={"limit": RETRIES_MAX + 1}),
            "INVALID_DEFINITION",
            "nodes[0].retries.limit",
        ),
        *(
            (
                lambda d, task=task: d["nodes"][0].update(task=task, external=True),
                "INVALID_DEFINITION",
                "nodes[0].task",
            )
            for task in ("charge card", "zahlen/jetzt", "é", "-x", "", "x" * 65)
        ),
        *(
            (
                lambda d, name=name: d["transitions"][0]["foreach"].update(itemVar=name),
                "INVALID_EXPRESSION",
                "transitions[0].foreach.itemVar",
            )
            for name in ("in", "true", "null", "for", "namespace", "headwater_local", "é", "")
        ),
    ],
)
def test_a_contradiction_is_told_with_its_code_and_its_path(change: Change, code: str, path: str):
    data = review()
    change(data)
    assert (code, path) in problems(data)


def test_all_that_is_wrong_is_told_at_once_and_quotes_the_expressions():
    data = document(
        [node("a", subworkflow="b"), {"ref": "a"}],
        [way("t", "a", "z", condition="1 +", synchronization=joined("few"))],
    )
    with pytest.raises(ValueError, match="the expression `1 \\+` is not valid") as caught:
        graph_of(data)
    assert isinstance(caught.value, DefinitionInvalid)
    assert {problem.code for problem in caught.value.problems} == {
        "DUPLICATE_NODE_REF",
        "INVALID_EXPRESSION",
        "INVALID_NODE_REF",
        "INVALID_SIBLING_GROUP",
        "INVALID_STRATEGY",
        "MISSING_OWNER",
        "MULTIPLE_OWNERS",
    }
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert again.problems == caught.value.problems


def test_all_that_is_not_of_its_type_is_told_at_once_with_its_path():
    data = review(timeoutMs="soon", strategi="all")
    data["nodes"][0] |= {"ref": 1, "inputMapping": {"a": "state.a", "b": 2, "c": None}}
    data["nodes"][1]["retries"] = {"delay": True}
    data["transitions"][0]["foreach"] = []
    data["transitions"][1].pop("toNodeRef")
    data |= {"inputSchema": "object", "version": 2}
    with pytest.raises(DefinitionInvalid) as caught:
        read_definition(data)
    assert {problem.code for problem in caught.value.problems} == {"INVALID_DEFINITION"}
    reported = [(problem.path, problem.message) for problem in caught.value.problems]
    assert [path for path, _ in reported] == [
        "nodes[0].ref",
        "nodes[0].inputMapping.b",
        "nodes[0].inputMapping.c",
        "nodes[1].retries",
        "nodes[1].retries.delay",
        "transitions[0].foreach",
        "transitions[1]",
        "transitions[1].synchronization.timeoutMs",
        "transitions[1].synchronization",
        "inputSchema",
        "$",
    ]
    assert reported[0][1] == "expected `str`, got `int`"
    assert reported[6][1] == "expected the field 'toNodeRef', found none"
    assert reported[-1][1].startswith("expected one of the fields name, initialNodeRef, nodes,")
    assert reported[-1][1].endswith("found 'version'")


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b'{"a":' * 5000, b"null"])
def test_what_is_no_document_is_refused(text: bytes):
    with pytest.raises(DefinitionInvalid, match="INVALID_DEFINITION"):
        read_definition(text)
