"""Laws of the planners, over random graphs and random orders of completion.

Each run is done by the naive model.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.graph.data_flow import map_input
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.validation import quorum
from tests.fakes.drawn_graphs import INPUT, STRATEGIES, Blocks
from tests.property.graph_model import CANCELLED, DONE, Model


@st.composite
def graphs(draw: Callable[[st.SearchStrategy[Any]], Any], strategies: tuple[str, ...]) -> Graph:
    random = draw(st.randoms(use_true_random=False))
    return graph_of(Blocks(random, strategies).document("g"))


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
        assert "cannot be reached" in model.error or "none can arrive by" in model.error


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
    model.complete(model.tokens["0"], {})
    branches = [model.tokens[item] for item in model.ready()]
    # Were the input converted for each of them, this would take minutes.
    given = [map_input(graph, "b", model.scope(branch)) for branch in branches]
    assert given == [{"n": 2 * n} for n in range(10_000)]
