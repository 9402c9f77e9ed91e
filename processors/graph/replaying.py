"""Replay a recorded run of a graph against a definition: does it decide the same?

The inputs of decisions (results of tasks, ends of waits and of children, errors) are in the
history. Each decision is computed again from the state before it, with the checked definition.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headwater.processors.graph.graph import Graph
from headwater.processors.graph.past import Past
from headwater.processors.graph.state import GraphRun, LiveToken
from headwater.processors.graph.tracing import is_decided, is_same_event, recompute
from headwater.processors.runs.history_files import Rewriter
from headwater.schemas.history import (
    GraphMigrated,
    GraphStarted,
    HistoryAppended,
    LogEvent,
    RunErrored,
    TokenFailed,
    TokensCreated,
)
from headwater.schemas.replay_answers import ReplayPoint


class GraphDecision(NamedTuple):
    """A decision of a run, as recorded and as computed again.

    Attributes:
        sequence: Number of its first event.
        recorded: The recorded events, from that one on.
        requested: The events of the definition; of a decision that is the same, the recorded ones.
        nodes: Nodes of the tokens that were live before, by number.
        same: Whether they are the same.
    """

    sequence: int
    recorded: Sequence[LogEvent]
    requested: Sequence[LogEvent]
    nodes: dict[int, str]
    same: bool


class GraphReplay:
    """Replays a run of a graph.

    Args:
        past: The run, before its first event.
        graph: The definition; None for that of the run. Decisions before a migration were made
            with another definition, and are replayed with that one.
        before: Number of the first event to leave out; None for none.
        exact: Whether values are compared, too. Those of redacted histories may differ.
    """

    def __init__(
        self,
        past: Past,
        graph: Graph | None = None,
        before: int | None = None,
        *,
        exact: bool = True,
    ) -> None:
        self.past = past
        self._exact = exact
        self._graph = graph
        self._before = before

    @property
    def run(self) -> GraphRun:
        """State of the run after the decisions so far."""
        return self.past.run

    def decisions(self, records: Sequence[HistoryAppended]) -> Iterator[GraphDecision]:
        """Yield the decisions of the run. None follows the first that is not the same."""
        past = self.past
        migrations = _migrations(records, past.run_number)
        for record in filter(past.is_relevant, records):
            events: Sequence[LogEvent] = record.events
            while events and not past.is_done() and not self._is_over(record):
                graph = None if migrations else self._graph
                if graph is not None and past.graph is not None:
                    past.graph = graph
                decision, count = None, 1
                if is_decided(past, record, events[0]):
                    decision, count = self._decide(record, events, graph)
                    yield decision
                    if not decision.same:
                        return
                for event in events[:count]:
                    past.apply_event(record, event)
                    migrations -= _is_migration(record, event, past.run_number)
                events = events[count:]

    def _is_over(self, record: HistoryAppended) -> bool:
        run = self.past.state
        if self._before is None or run is None or record.run_number != self.past.run_number:
            return False
        return run.run_number == self.past.run_number and run.sequence >= self._before

    def _decide(
        self, record: HistoryAppended, events: Sequence[LogEvent], graph: Graph | None
    ) -> tuple[GraphDecision, int]:
        run = self.run
        nodes = {number: token.node for number, token in run.tokens.items()}
        draft, count, same = recompute(self.past, events, record.at_ms, graph)
        requested = events[:count] if same else draft.events
        if not same and not self._exact:
            shapes = [_shape(event) for event in draft.events]
            count = len(shapes)
            same = 0 < count <= len(events) and [*map(_shape, events[:count])] == shapes
        return GraphDecision(run.sequence, events, requested, nodes, same), count


def _shape(event: LogEvent) -> LogEvent:
    """Return an event without values of authors."""
    return Rewriter(payload=_no_value, text=_no_text).event(event)


def _no_value(value: object) -> None:
    """Return no value."""


def _no_text(text: str) -> str:
    """Return no text."""
    return ""


def _migrations(records: Sequence[HistoryAppended], number: int) -> int:
    return sum(
        _is_migration(record, event, number) for record in records for event in record.events
    )


def _is_migration(record: HistoryAppended, event: LogEvent, number: int) -> bool:
    return isinstance(event, GraphMigrated) and record.run_number == number


# -- differences


def difference_points(decision: GraphDecision) -> tuple[ReplayPoint | None, ReplayPoint]:
    """Return the first recorded event of a decision that differs, and the one computed instead."""
    recorded, requested = decision.recorded, decision.requested
    pairs = enumerate(zip(recorded, requested, strict=False))
    differing = (index for index, pair in pairs if not is_same_event(*pair))
    index = next(differing, min(len(recorded), len(requested)))
    nothing = ReplayPoint(kind="nothing")
    sequence = decision.sequence + index
    there = _point(recorded, index, decision.nodes)
    point = None if there is None else ReplayPoint(**_fields(there), sequence=sequence)
    return point, _point(requested, index, decision.nodes) or nothing


def _fields(point: ReplayPoint) -> dict[str, str]:
    return {"kind": point.kind, "name": point.name}


def _point(events: Sequence[LogEvent], index: int, nodes: dict[int, str]) -> ReplayPoint | None:
    if index >= len(events):
        return None
    event = events[index]
    return ReplayPoint(kind=type(event).__name__, name=_node_of(event, nodes))


def _node_of(event: LogEvent, nodes: dict[int, str]) -> str:
    """Return the node that an event is about, or the error of a run."""
    if isinstance(event, TokensCreated):
        return event.node
    if isinstance(event, RunErrored):
        return f"{event.failure.name}: {event.failure.message}"
    tokens = getattr(event, "tasks", None) or getattr(event, "tokens", None) or ()
    token = tokens[0] if tokens else getattr(event, "token", None)
    number = getattr(token, "token", token)
    return nodes.get(number, "") if isinstance(number, int) else ""


# -- failed tasks


def failed_task(records: Sequence[HistoryAppended], number: int) -> tuple[TokenFailed, int] | None:
    """Return the latest failure of a task in a run, and the number of its event."""
    failed: tuple[TokenFailed, int] | None = None
    for record in records:
        if record.run_number == number:
            for sequence, event in enumerate(record.events, record.sequence):
                if isinstance(event, TokenFailed) and event.retry_at_ms is None:
                    # A failure with a result is one of the definition.
                    failed = None if event.result is not None else (event, sequence)
    return failed


def task_of(run: GraphRun, failed: TokenFailed) -> LiveToken | None:
    """Return the token whose task failed, if it has one in flight."""
    token = run.tokens.get(failed.token)
    return token if token is not None and token.in_flight else None


def started_document(records: Sequence[HistoryAppended]) -> str | None:
    """Return the definition that a run started on, as JSON text."""
    return next(
        (
            event.document
            for record in records
            for event in record.events
            if isinstance(event, GraphStarted)
        ),
        None,
    )
