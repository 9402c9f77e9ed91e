"""What is said to follow is what follows, and what was decided is decided again: random graphs."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.explaining import explain
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.introspection import introspect_tokens, simulate_routing
from headwater.processors.graph.past import Past
from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import GraphRun, LiveToken
from headwater.processors.graph.tracing import Tracing
from headwater.processors.runs.decisions import (
    Facts,
    Reached,
    Rejection,
    RetryPolicy,
    StepRaised,
    StepReturned,
)
from headwater.processors.runs.engine import fold
from headwater.schemas.history import (
    NO_CAUSE,
    Failure,
    HistoryAppended,
    RunEvent,
    StartRun,
    TokensCreated,
)
from tests.fakes.followed_graphs import followed
from tests.property.test_graph_planners import INPUT, STRATEGIES, graphs
from tests.simulation.graph_laws import GraphLaws

NAMES = ("node_ref", "transition_ref", "fork", "path_id", "branch_index")
FLYING = {TokenStatus.DISPATCHED, TokenStatus.EXECUTING}
ENGINE = GraphEngine()


class Played:
    """A run, driven by the engine itself, with its history."""

    def __init__(self, graph: Graph) -> None:
        self.engine = GraphEngine([graph])
        self.records: list[HistoryAppended] = []
        self.run: GraphRun | None = None
        start = StartRun(msgspec.json.encode(INPUT).decode())
        begun = self.engine.decide_command(None, start, Facts("g", "i", 0, 0))
        self.append(begun)

    def append(self, decided: list[RunEvent] | Rejection) -> list[RunEvent]:
        assert not isinstance(decided, Rejection)
        record = HistoryAppended(
            workflow="g",
            instance_id="i",
            run_number=0,
            sequence=0 if self.run is None else self.run.sequence,
            epoch=0,
            cause=NO_CAUSE,
            at_ms=len(self.records),
            events=tuple(decided),
        )
        self.records.append(record)
        self.run = fold({"graph": self.engine}, self.run, record)
        return decided

    def flying(self) -> list[LiveToken]:
        run = self.run
        if run is None or run.ended:
            return []
        return [token for token in run.tokens.values() if token.status in FLYING]

    def complete(self, token: LiveToken, output: str) -> list[RunEvent]:
        assert self.run is not None
        reached = Reached(str(token.number), token.node, token.number, 0, 1, 0)
        requested = StepReturned(reached, token.attempts + 1, RetryPolicy(0, 0, "constant"), output)
        return self.append(self.engine.decide(self.run, requested, len(self.records)))

    def fail(self, token: LiveToken) -> list[RunEvent]:
        assert self.run is not None
        reached = Reached(str(token.number), token.node, token.number, 0, 1, 0)
        failure = Failure("Refused", f"token {token.number}")
        requested = StepRaised(reached, token.attempts + 1, failure, RetryPolicy(0, 0, "constant"))
        return self.append(self.engine.decide(self.run, requested, len(self.records)))

    def past(self, until: int | None = None) -> Past:
        past = Past("g", "i", 0, until)
        for record in self.records:
            past.apply(record)
        assert past.refused() is None
        return past


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
        # Of a result that the run cannot go on with, nothing comes.
        assert made == (result if said.error is None else [])
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


def follow(graph: Graph, data: st.DataObject) -> None:
    """Plays a run of which some nodes fail; laws and the naive model are kept to at every step."""
    played, laws = Played(graph), GraphLaws()
    assert played.run is not None
    laws.read(played.records[-1], played.run)
    left = iter(range(400))
    while (flying := played.flying()) and next(left, None) is not None:
        token = data.draw(st.sampled_from(flying))
        if data.draw(st.integers(0, 9)) < 3:
            played.fail(token)
        else:
            played.complete(token, f'{{"at":"{token.path}:{token.node}"}}')
        laws.read(played.records[-1], played.run)
    followed(played.records)
    tracing = Tracing(Past("g", "i", 0), limit=10_000)
    for record in played.records:
        tracing.apply(record)
    assert all(item.same for item in tracing.page().decided)


@settings(max_examples=30)
@given(graph=graphs(STRATEGIES, tolerant=True), data=st.data())
def test_the_engine_does_what_the_naive_model_does(graph: Graph, data: st.DataObject):
    follow(graph, data)


@pytest.mark.soak
@settings(max_examples=5_000)
@given(graph=graphs(STRATEGIES, tolerant=True), data=st.data())
def test_the_engine_does_what_the_naive_model_does_in_many_graphs(
    graph: Graph, data: st.DataObject
):
    follow(graph, data)
