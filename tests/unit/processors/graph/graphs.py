"""Definitions to test with: small parts, put together by each test."""

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.processors.graph.graph import Graph, graph_of


def node(ref: str, **more: object) -> dict[str, Any]:
    return {"ref": ref, "task": "noop", **more}


def way(ref: str, start: str, end: str, **more: object) -> dict[str, Any]:
    return {"ref": ref, "fromNodeRef": start, "toNodeRef": end, **more}


def joined(strategy: str = "all", group: str = "judges", **more: object) -> dict[str, Any]:
    return {"strategy": strategy, "siblingGroup": group, **more}


def merged(strategy: str, source: str = "_branch.output.vote") -> dict[str, str]:
    return {"source": source, "target": "state.votes", "strategy": strategy}


def document(
    nodes: Sequence[Mapping[str, Any]], ways: Sequence[Mapping[str, Any]] = (), **more: object
) -> dict[str, Any]:
    return {
        "name": "review",
        "initialNodeRef": nodes[0]["ref"],
        "nodes": list(nodes),
        "transitions": list(ways),
        **more,
    }


def review(**synchronization: object) -> dict[str, Any]:
    """The judges of a review vote side by side, and their votes are tallied."""
    return document(
        [
            node("start"),
            node(
                "vote",
                inputMapping={"judge": "input.judges[_branch.index]"},
                outputMapping={"output.vote": "result.vote"},
            ),
            node("tally", outputMapping={"state.winner": "result.winner"}),
        ],
        [
            way(
                "t1",
                "start",
                "vote",
                siblingGroup="judges",
                foreach={"collection": "input.judges", "itemVar": "judge"},
            ),
            way("t2", "vote", "tally", synchronization=joined() | synchronization),
        ],
        outputMapping={"winner": "state.winner"},
    )


def graph(
    nodes: Sequence[Mapping[str, Any]], ways: Sequence[Mapping[str, Any]] = (), **more: object
) -> Graph:
    return graph_of(document(nodes, ways, **more))
