"""What is said to follow is what follows, and what was decided is decided again: random graphs."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.explaining import explain
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.introspection import introspect_tokens, simulate_routing
from headwater.processors.graph.past import Past
from headwater.processors.graph.tracing import Tracing
from headwater.processors.runs.decisions import Rejection, Wake
from headwater.schemas.history import PauseRun, ResumeRun, RunEvent, TokensCreated
from tests.fakes.followed_graphs import followed
from tests.property.graph_playing import Played, Player
from tests.property.test_graph_planners import STRATEGIES, graphs

NAMES = ("node_ref", "transition_ref", "fork", "path_id", "branch_index")
ENGINE = GraphEngine()


def created(events: list[RunEvent]) -> list[tuple[Any, ...]]:
    """The tokens that events create, each by itself."""
    return [
        (
            event.node,
            event.transition,
            event.fork,
            event.path if event.count == 1 else f"{event.path}{event.branch + nth}",
            event.branch + nth,
        )
        for event in events
        if isinstance(event, TokensCreated)
        for nth in range(event.count)
    ]


def play(graph: Graph, data: st.DataObject) -> Played:
    """Plays a run to its end; before each completion, what is said to follow is kept to."""
    played = Played(graph)
    left = iter(range(200))
    while (flying := played.flying()) and next(left, None) is not None:
        token = data.draw(st.sampled_from(flying))
        output = f'{{"at":"{token.path}:{token.node}"}}'
        past = played.past()
        before = ENGINE.encode(past.run)
        said = simulate_routing(past, token=str(token.number), output=output)
        assert not isinstance(said, Rejection)
        assert before == ENGINE.encode(past.run)
        result = [
            tuple(decision["params"][name] for name in NAMES)
            for decision in said.decisions
            if decision["type"] == "CREATE_TOKEN"
        ]
        made = created(played.complete(token, output))
        assert made == result
        run = played.run
        assert run is not None
        assert (said.would_be, said.error is None) == (run.status, run.failure is None)
        assert sum(fire.tokens for fire in said.fires) <= len(result)
    return played


@settings(max_examples=30)
@given(graph=graphs(STRATEGIES), data=st.data())
def test_what_would_follow_is_what_the_engine_then_decides(graph: Graph, data: st.DataObject):
    played = play(graph, data)
    tracing = Tracing(Past("g", "i", 0), limit=10_000)
    for record in played.records:
        tracing.apply(record)
    assert all(item.same for item in tracing.page().decided)


@settings(max_examples=30)
@given(graph=graphs(STRATEGIES), data=st.data())
def test_any_state_of_the_past_is_explained(graph: Graph, data: st.DataObject):
    played = play(graph, data)
    until = data.draw(st.integers(0, played.past().sequence))
    past = played.past(until)
    explained = explain(past)
    assert past.sequence == until
    assert sum(explained.waiting_for.values()) == introspect_tokens(past).total
    for join in explained.joins:
        assert join.arrived_count + join.missing_count == join.total
        assert sum(join.missing_by.values()) == join.missing_count
        assert len(join.arrived) == join.arrived_count


@settings(max_examples=20)
@given(draw=st.randoms(use_true_random=False))
def test_the_engine_does_what_the_naive_model_does_whatever_comes_from_outside(draw: Random):
    Player(draw).play()


def test_a_join_whose_merge_failed_may_be_cancelled_by_what_else_the_pause_has_held():
    merge = {"source": "_branch.output.at", "target": "output.all", "strategy": "merge_object"}
    inner = {"strategy": "all", "siblingGroup": "inner", "merge": merge}
    outer = {"strategy": "any", "siblingGroup": "outer"}
    node = {"task": "work", "outputMapping": {"output.at": "result.at"}}
    ways: list[dict[str, Any]] = [
        {"fromNodeRef": "start", "toNodeRef": "fork", "siblingGroup": "outer"},
        {"fromNodeRef": "start", "toNodeRef": "quick", "siblingGroup": "outer"},
        {"fromNodeRef": "fork", "toNodeRef": "text", "siblingGroup": "inner", "spawnCount": 2},
        {"fromNodeRef": "text", "toNodeRef": "join", "synchronization": inner},
        {"fromNodeRef": "join", "toNodeRef": "mend", "on": "error"},
        {"fromNodeRef": "quick", "toNodeRef": "end", "synchronization": outer},
    ]
    refs = ("start", "fork", "quick", "text", "join", "mend", "end")
    document = {
        "name": "g",
        "initialNodeRef": "start",
        "nodes": [{"ref": ref, **node} for ref in refs],
        "transitions": [{"ref": f"w{nth}", **way} for nth, way in enumerate(ways)],
    }
    played = Played(graph_of(document))
    for ref in ("start", "fork"):
        (token,) = (token for token in played.flying() if token.node == ref)
        played.complete(token, "{}")
    played.command(PauseRun())
    for token in sorted(played.flying(), key=lambda token: token.node, reverse=True):
        played.complete(token, '{"at":"text"}')
        played.now_ms += 1
    played.command(ResumeRun())
    played.request(Wake(played.now_ms, complete=True))
    assert [token.node for token in played.flying()] == ["end"]
    followed(played.records)


@pytest.mark.soak
def test_the_engine_does_what_the_naive_model_does_in_many_graphs():
    for seed in range(20_000):
        Player(Random(seed)).play()
