"""Laws of the planners, over random graphs and random orders of completion.

The graphs are built of blocks: a node, blocks in a row, a fork with its join around a block, a
choice, and a loop around a block. Each run is done by the naive model.
"""

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.graph.batching import batch
from headwater.processors.graph.decisions import (
    BatchCreateTokens,
    CreateToken,
    MarkForDispatch,
    TokenParams,
    UpdateTokenStatus,
)
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.mappings import map_input
from headwater.processors.graph.tokens import TokenStatus
from headwater.processors.graph.validation import quorum
from tests.property.graph_model import CANCELLED, DONE, Model

INPUT = {"few": [1, 2, 3], "one": [7], "none": []}
STRATEGIES = ("all", "any", "m_of_n:1", "m_of_n:2")


class Blocks:
    """Puts blocks together: each has a first and a last node."""

    def __init__(
        self, draw: Callable[[st.SearchStrategy[Any]], Any], strategies: tuple[str, ...]
    ) -> None:
        self.draw = draw
        self.strategies = strategies
        self.nodes: list[dict[str, Any]] = []
        self.ways: list[dict[str, Any]] = []

    def node(self) -> str:
        ref = f"n{len(self.nodes)}"
        self.nodes.append({"ref": ref, "task": "t", "outputMapping": {"output.at": "result.at"}})
        return ref

    def way(self, start: str, end: str, **more: object) -> None:
        ref = f"w{len(self.ways)}"
        self.ways.append({"ref": ref, "fromNodeRef": start, "toNodeRef": end, **more})

    def block(self, depth: int) -> tuple[str, str]:
        kinds = ["node", "row", "fork", "choice", "loop"] if depth else ["node"]
        kind = self.draw(st.sampled_from(kinds))
        if kind == "node":
            only = self.node()
            return only, only
        return getattr(self, kind)(depth - 1)

    def row(self, depth: int) -> tuple[str, str]:
        first, last = self.block(depth), self.block(depth)
        self.way(first[1], last[0])
        return first[0], last[1]

    def fork(self, depth: int) -> tuple[str, str]:
        start, body, end = self.node(), self.block(depth), self.node()
        group = f"g{len(self.ways)}"
        merge = {"source": "_branch.output.at", "target": "output.all", "strategy": "collect"}
        collection = self.draw(st.sampled_from([*INPUT, None]))
        many: dict[str, Any] = {"spawnCount": 2}
        if collection:
            many = {"foreach": {"collection": f"input.{collection}", "itemVar": "item"}}
            if self.draw(st.booleans()):
                many["foreach"]["onEmpty"] = "fan_in"
        self.way(start, body[0], siblingGroup=group, **many)
        if self.draw(st.booleans()):
            # Every other branch ends elsewhere, at the same priority or in place of the join.
            elsewhere = self.node()
            tier = self.draw(st.integers(-1, 0))
            self.way(body[1], elsewhere, condition="_branch.index % 2 == 1", priority=tier)
        strategy = self.draw(st.sampled_from(self.strategies))
        joined = {"strategy": strategy, "siblingGroup": group, "merge": merge}
        self.way(body[1], end, synchronization=joined)
        return start, end

    def choice(self, depth: int) -> tuple[str, str]:
        start, left, right, end = self.node(), self.block(depth), self.block(depth), self.node()
        when = self.draw(st.sampled_from(["true", "state.missing > 1", "_branch.index == 0"]))
        self.way(start, left[0], condition=when)
        self.way(start, right[0], priority=1)
        self.way(left[1], end)
        self.way(right[1], end)
        return start, end

    def loop(self, depth: int) -> tuple[str, str]:
        body, end = self.block(depth), self.node()
        self.way(body[1], body[0], loopConfig={"maxIterations": self.draw(st.integers(1, 2))})
        self.way(body[1], end, priority=1)
        return body[0], end


@st.composite
def graphs(draw: Callable[[st.SearchStrategy[Any]], Any], strategies: tuple[str, ...]) -> Graph:
    blocks = Blocks(draw, strategies)
    first, _ = blocks.block(2)
    document = {"name": "g", "initialNodeRef": first, "nodes": blocks.nodes}
    return graph_of(document | {"transitions": blocks.ways})


def done(graph: Graph, data: st.DataObject) -> Model:
    model = Model(graph, INPUT)
    left = iter(range(5_000))

    def pick(ready: list[str]) -> str:
        next(left)
        return data.draw(st.sampled_from(ready))

    model.run(pick, lambda token, given: {"at": f"{token.path_id}:{token.node_ref}"})
    return model


@given(graph=graphs(STRATEGIES), data=st.data())
def test_every_token_ends_and_no_meeting_point_goes_on_twice(graph: Graph, data: st.DataObject):
    model = done(graph, data)
    assert set(model.activated.values()) <= {1}
    for (fork, node_ref), merged in model.merged.items():
        assert merged <= set(range(model.forks[fork].total))
        for way in graph.definition.transitions:
            if way.to_node_ref == node_ref and way.synchronization is not None and merged:
                assert len(merged) >= (quorum(way.synchronization.strategy) or 1)
    if model.error is None:
        assert set(model.status.values()) <= {DONE, CANCELLED}
        assert model.output is not None
    else:
        assert "cannot be reached" in model.error


@given(graph=graphs(("all",)), data=st.data())
def test_the_order_of_arrival_does_not_matter_for_all(graph: Graph, data: st.DataObject):
    first = done(graph, data)
    second = Model(graph, INPUT)
    second.run(
        lambda ready: ready[0], lambda token, given: {"at": f"{token.path_id}:{token.node_ref}"}
    )
    assert (first.error, second.error) == (None, None)
    assert len(first.tokens) == len(second.tokens)
    assert sorted(first.merged.values(), key=sorted) == sorted(second.merged.values(), key=sorted)
    assert first.output == second.output


DECISIONS = st.sampled_from(
    [
        CreateToken(params=TokenParams(node_ref="a", parent_token_id=None, path_id="root")),
        CreateToken(params=TokenParams(node_ref="b", parent_token_id=None, path_id="root")),
        UpdateTokenStatus(token_id="t", status=TokenStatus.TIMED_OUT),
        MarkForDispatch(token_id="t"),
    ]
)


@given(st.lists(DECISIONS))
def test_putting_decisions_together_changes_nothing_but_their_number(decisions: list[Any]):
    again: list[Any] = []
    for each in batch(decisions):
        if isinstance(each, BatchCreateTokens):
            again += [CreateToken(params=params) for params in each.all_params]
        elif hasattr(each, "updates"):
            again += [UpdateTokenStatus(token_id=t, status=s) for t, s in each.updates]
        else:
            again.append(each)
    assert again == decisions
    kinds = [type(each) for each in batch(decisions)]
    assert all(a is not b or a is MarkForDispatch for a, b in itertools.pairwise(kinds))


def test_a_fan_in_within_a_loop_goes_on_once_a_round():
    graph = graph_of(
        {
            "name": "g",
            "initialNodeRef": "a",
            "nodes": [{"ref": ref, "task": "t"} for ref in "abcd"],
            "transitions": [
                {
                    "ref": "f",
                    "fromNodeRef": "a",
                    "toNodeRef": "b",
                    "spawnCount": 3,
                    "siblingGroup": "g",
                },
                {
                    "ref": "j",
                    "fromNodeRef": "b",
                    "toNodeRef": "c",
                    "synchronization": {"strategy": "all", "siblingGroup": "g"},
                },
                {
                    "ref": "l",
                    "fromNodeRef": "c",
                    "toNodeRef": "a",
                    "loopConfig": {"maxIterations": 4},
                },
                {"ref": "e", "fromNodeRef": "c", "toNodeRef": "d", "priority": 1},
            ],
        }
    )
    model = Model(graph, {})
    model.run(lambda ready: ready[-1], lambda token, given: {})
    assert list(model.activated.values()) == [1] * 5
    assert {
        token.iteration_counts.get("l") for token in model.tokens.values() if token.node_ref == "d"
    } == {4}


def test_ten_thousand_branches_each_see_their_own_item_of_one_input():
    mapping = {"n": "item.n + input.items[_branch.index].n"}
    foreach = {"collection": "input.items", "itemVar": "item"}
    graph = graph_of(
        {
            "name": "g",
            "initialNodeRef": "a",
            "nodes": [
                {"ref": "a", "task": "t"},
                {"ref": "b", "task": "t", "inputMapping": mapping},
            ],
            "transitions": [{"ref": "f", "fromNodeRef": "a", "toNodeRef": "b", "foreach": foreach}],
        }
    )
    model = Model(graph, {"items": [{"n": n} for n in range(10_000)]})
    model.complete(model.tokens["t0"], {})
    branches = [model.tokens[each] for each in model.ready()]
    # Were the input converted for each of them, this would take minutes.
    given = [map_input(graph, "b", model.scope(each)) for each in branches]
    assert given == [{"n": 2 * n} for n in range(10_000)]
