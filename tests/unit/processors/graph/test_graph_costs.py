"""What a node costs does not depend on the size of its graph: counted in bytes and calls.

Lines, and forks within a fork, of 10 to 10,000 nodes, which an engine decides in process.
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.state import GraphRun  # noqa: TC001, of a narrowed variable
from headwater.processors.rows.history import HistoryRows
from headwater.processors.rows.plan import plan_record
from headwater.processors.runs.decisions import Facts, Reached, Rejection, RetryPolicy, StepReturned
from headwater.processors.runs.engine import fold
from headwater.schemas.history import NO_CAUSE, HistoryAppended, RunEvent, StartRun
from tests.workflows.graphing import edge, graph, node

#: The calls of every so many nodes are counted, which takes several times as long.
_SAMPLE = 5
ONCE = RetryPolicy(0, 0, "constant")


class Costs:
    """Runs a graph to its end; counts what its history, its rows and its decisions take."""

    def __init__(self, graph: Graph, params: object) -> None:
        self.engine = GraphEngine([graph])
        self.run: GraphRun | None = None
        self.bytes = self.calls = self.nodes = 0
        self.rows = HistoryRows()
        start = StartRun(msgspec.json.encode(params).decode())
        self._take(lambda: self.engine.decide_command(None, start, Facts("g", "i", 0, 0)))
        assert self.run is not None
        # Without the definition, which is as large as the graph.
        self.bytes = self.calls = 0
        while not self.run.ended:
            for number in [number for number, token in self.run.tokens.items() if token.in_flight]:
                self._complete(number)

    def _complete(self, number: int) -> None:
        run = self.run
        assert run is not None
        token = run.tokens.get(number)
        if token is not None:
            reached = Reached(str(number), token.node, number, 0, 1, 0)
            returned = StepReturned(reached, 1, ONCE, '{"n":1}')
            self._take(lambda: self.engine.decide(run, returned, 0))
            self.nodes += 1

    def _take(self, decide: Callable[[], list[RunEvent] | Rejection]) -> None:
        decided = self._counted(decide)
        assert not isinstance(decided, Rejection)
        sequence = 0 if self.run is None else self.run.sequence
        record = HistoryAppended(
            workflow="g",
            instance_id="i",
            run_number=0,
            sequence=sequence,
            epoch=0,
            cause=NO_CAUSE,
            at_ms=0,
            events=tuple(decided),
        )
        self.run = self._counted(lambda: fold({"graph": self.engine}, self.run, record))
        self.bytes += len(msgspec.json.encode(decided))
        plan_record(self.rows, record)

    def _counted(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401, whatever it gives
        """Counts the calls of functions of Python and of C, for some of the nodes."""

        if self.nodes % _SAMPLE:
            return work()

        def count(_: object, event: str, __: object) -> None:
            self.calls += event in {"call", "c_call"}

        sys.setprofile(count)
        try:
            return work()
        finally:
            sys.setprofile(None)

    @property
    def row_bytes(self) -> int:
        return sum(len(row["iteration_counts"]) for row in self.rows.tokens(0))


def line(length: int) -> Graph:
    nodes = [node(f"n{number:05}") for number in range(length)]
    ways = [edge(nodes[at]["ref"], nodes[at + 1]["ref"]) for at in range(length - 1)]
    return graph_of(graph(nodes, ways))


def forks(strategy: str) -> Graph:
    """A fork of input.many, with a fork of two in each branch, whose inner join comes first."""
    inner = {"strategy": "all", "siblingGroup": "inner"}
    outer = {"strategy": strategy, "siblingGroup": "outer"}
    each = {"collection": "input.many", "itemVar": "x"}
    return graph_of(
        graph(
            [node("s"), node("a"), node("b"), node("c"), node("d")],
            [
                edge("s", "a", siblingGroup="outer", foreach=each),
                edge("a", "b", siblingGroup="inner", spawnCount=2),
                edge("b", "c", synchronization=inner),
                edge("c", "d", synchronization=outer),
            ],
        )
    )


def per_node(costs: Costs) -> tuple[float, float, float]:
    nodes = costs.nodes
    return costs.bytes / nodes, costs.row_bytes / nodes, costs.calls / nodes * _SAMPLE


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (lambda: Costs(line(10), None), lambda: Costs(line(10_000), None)),
        (
            lambda: Costs(forks("all"), {"many": list(range(10))}),
            lambda: Costs(forks("all"), {"many": list(range(3_000))}),
        ),
    ],
)
def test_a_node_costs_the_same_in_a_graph_of_any_size(
    small: Callable[[], Costs], large: Callable[[], Costs]
):
    for few, many in zip(per_node(small()), per_node(large()), strict=True):
        # Numbers have more digits, and a tenth of the first run is its end.
        assert many < few * 1.5
