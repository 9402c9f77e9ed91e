"""Drawings: a definition as Mermaid and as SVG, with the tokens of a run on it."""

import itertools
import xml.etree.ElementTree as ET

from headwater.processors.graph.definition import read_definition
from headwater.processors.graph.diagrams import layers, to_mermaid, to_svg
from tests.unit.processors.graph.graphs import document, node, review, way

REVIEW = review(strategy="m_of_n:2")
REVIEW["transitions"].append(
    way("t3", "tally", "vote", condition='state.n < 3 && state.x == "<b>"', priority=1)
)
TOKENS = {"vote": {"executing": 2, "completed": 1}}


def test_mermaid_shows_nodes_ways_and_tokens():
    assert (
        to_mermaid(read_definition(REVIEW), TOKENS)
        == """flowchart TD
    start(( )) --> n0
    n0["start<br/>noop"]
    n1["vote<br/>noop<br/>2 executing, 1 completed"]
    n2["tally<br/>noop"]
    n0 -->|"each judge of input.judges"| n1
    n1 -->|"m_of_n:2 of judges"| n2
    n2 -->|"state.n #60; 3 #38;#38; state.x == #34;#60;b#62;#34;"| n1
    classDef live fill:#ddf4ff,stroke:#0969da,stroke-width:3px,color:#1f2328
    class n1 live
"""
    )


def test_svg_is_a_document_with_every_node_way_and_token():
    picture = ET.fromstring(to_svg(read_definition(REVIEW), TOKENS))  # noqa: S314, our own
    space = "{http://www.w3.org/2000/svg}"
    texts = {item.text for item in picture.iter(f"{space}text")}
    assert {"start", "vote", "tally", "noop", "2 executing, 1 completed"} <= texts
    titles = [item.text for item in picture.iter(f"{space}title")]
    assert {"review", "t1", "t2", "t3", 'state.n < 3 && state.x == "<b>"'} <= set(titles)
    assert len([item for item in picture.iter(f"{space}g") if item.get("class") == "live"]) == 1


def test_waits_and_ways_of_errors_look_different():
    nodes = [
        node("cool", task=None, wait={"durationMs": 5}),
        node("until", task=None, wait={"until": "input.at"}),
        node("approval", task=None, event={"type": "approval"}),
    ]
    ways = [way("t1", "cool", "until"), way("t2", "cool", "approval", on="error", condition="true")]
    drawn = read_definition(document(nodes, ways))
    tokens = {"approval": {"waiting_for_event": 1}}
    text = to_mermaid(drawn, tokens)
    assert 'n0(["cool<br/>wait 5 ms"])' in text
    assert 'n1(["until<br/>wait until input.at"])' in text
    assert 'n2(["approval<br/>event approval<br/>1 waiting for event"])' in text
    assert "n0 --> n1" in text
    assert 'n0 -.->|"on error, true"| n2' in text
    assert "class n2 live" in text
    picture = to_svg(drawn, tokens)
    assert picture.count('<g class="waits') == 3
    assert picture.count('<path class="error"') == 1


def test_a_node_is_drawn_as_the_worst_of_its_tokens_is():
    tokens = {
        "start": {"completed": 1},
        "vote": {"completed": 1, "failed": 1, "cancelled": 1},
        "tally": {"waiting_for_siblings": 2, "completed": 1},
    }
    definition = read_definition(REVIEW)
    text = to_mermaid(definition, tokens)
    assert "class n0 done" in text
    assert "class n1 failed" in text
    assert "class n2 live" in text
    assert "2 waiting for siblings, 1 completed" in text
    picture = to_svg(definition, tokens)
    for drawn in ("done", "failed", "live"):
        assert picture.count(f'<g class="{drawn}">') == 1
    assert " class n" not in to_mermaid(definition, {"vote": {"cancelled": 1}})


def test_layers_lead_down_and_loops_do_not_count():
    definition = read_definition(REVIEW)
    assert layers(definition) == [["start"], ["vote"], ["tally"]]
    diamond = document(
        [node("a"), node("b"), node("c"), node("d"), node("alone")],
        [
            way("t1", "a", "b"),
            way("t2", "b", "c"),
            way("t3", "a", "d"),
            way("t4", "c", "d"),
            way("t5", "d", "d"),
            way("t6", "d", "a"),
        ],
    )
    assert layers(read_definition(diamond)) == [["a", "alone"], ["b"], ["c"], ["d"]]
    assert ET.fromstring(to_svg(read_definition(diamond))) is not None  # noqa: S314


def test_a_line_of_ten_thousand_nodes_is_drawn_too():
    refs = [f"n{index}" for index in range(10_000)]
    ways = [way(a, a, b) for a, b in itertools.pairwise(refs)]
    definition = read_definition(document([node(ref) for ref in refs], ways))
    assert len(layers(definition)) == 10_000
    assert to_svg(definition).count("<rect") == 10_000
