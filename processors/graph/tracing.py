"""Recompute how the decisions of a run came about, from the states before them.

No trace is stored. Decisions are pure and histories are complete, so the planners' results of any
run can be computed again on request. The events in the history show whether the decision is the
same. If another release decided differently, the page states it and shows only what the recorded
events say.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from headwater.processors.graph.advancing import (
    act_and_advance,
    begin,
    complete,
    continue_failed,
    end_wait,
    fail_node,
)
from headwater.processors.graph.dispatching import ENDED_MAX, dispatch_retries
from headwater.processors.graph.draft import Draft, end
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.introspection import SHOWN_MAX
from headwater.processors.graph.past import Past, moment, status_change
from headwater.processors.graph.planning import TokenStatus, Trace, as_dict
from headwater.processors.graph.state import GraphRun, LiveToken, meeting_key
from headwater.processors.graph.timing import apply_held, deadline_passed
from headwater.schemas.graph_answers import TracedDecision, TracePage
from headwater.schemas.history import (
    CommandRejected,
    FanInActivated,
    GraphMigrated,
    GraphStarted,
    HistoryAppended,
    InstanceDeleted,
    LeaderEpochNoted,
    LeaseExpired,
    LogEvent,
    PartitionClaimed,
    Post,
    PostsQueued,
    PostsSent,
    RunEvent,
    RunMoved,
    RunStarted,
    RunSuspended,
    RunTerminated,
    StartRun,
    TasksDispatched,
    TokenCompleted,
    TokenFailed,
    TokensCancelled,
    TokensTimedOut,
)

#: Decisions on one page, and bytes of it after which no other decision is added.
PAGE_MAX: Final = 100
_PAGE_BYTES: Final = 1024 * 1024
#: Tokens listed in a trace.
_NAMED_MAX: Final = 20
#: Events that may be the first of a planned decision.
_TRIGGERS: Final = (
    GraphStarted,
    TokenCompleted,
    TokenFailed,
    TokensTimedOut,
    FanInActivated,
    GraphMigrated,
    PostsSent,
)


#: Events that nothing follows.
_UNPLANNED: Final = (
    *(CommandRejected, GraphMigrated, LeaderEpochNoted, PartitionClaimed, RunMoved),
)


class Tracing:
    """Folds a run and recomputes its decisions within a range.

    Decisions with a first event numbered `first` or later are traced, up to `limit`. Records
    arrive as for `Past`.
    """

    def __init__(self, past: Past, first: int = 0, limit: int = PAGE_MAX) -> None:
        self.past = past
        self._first = first
        self._limit = limit
        self._bytes = 0
        self._decided: list[TracedDecision] = []
        self._next: int | None = None

    def is_done(self) -> bool:
        """Whether no further record can change the result."""
        return self._next is not None or self.past.is_done()

    def apply(self, record: HistoryAppended) -> None:
        """Apply a record, decision by decision."""
        past = self.past
        if not past.is_relevant(record):
            return
        events: Sequence[LogEvent] = record.events
        while events and not self.is_done():
            if not self._is_in_range(record, events[0]):
                past.apply_event(record, events[0])
                events = events[1:]
                continue
            if len(self._decided) >= self._limit or self._bytes > _PAGE_BYTES:
                self._next = past.sequence + 1
                return
            events = events[self._decide(record, events) :]

    def _is_in_range(self, record: HistoryAppended, event: LogEvent) -> bool:
        """Whether to trace the decision that begins with this event."""
        past = self.past
        return is_decided(past, record, event) and past.run.sequence >= self._first

    def _decide(self, record: HistoryAppended, events: Sequence[LogEvent]) -> int:
        """Recompute the decision that `events` begin with. Return how many of them it has."""
        past, first = self.past, self.past.sequence + 1
        draft, count, same = recompute(past, events, record.at_ms)
        traces = [(first + at, trace) for at, planned in draft.plans for trace in planned.events]
        decisions = [decision for _, planned in draft.plans for decision in planned.decisions]
        decided_events = events[:count]
        traces += [
            (first + at, trace)
            for at, event in enumerate(decided_events)
            for trace in _traces_of(event)
        ]
        traces.sort(key=_sequence)
        for event in decided_events:
            past.apply_event(record, event)
        last = past.sequence
        traces.append((last, Trace("dispatch.batch.complete", payload={"events": count})))
        self._decided.append(
            TracedDecision(
                sequence=first,
                last_sequence=last,
                at=moment(record.at_ms),
                events=[type(event).__name__ for event in decided_events],
                decisions=[as_dict(decision) for decision in decisions[:SHOWN_MAX]],
                trace=[as_dict(trace) | {"sequence": at} for at, trace in traces[:SHOWN_MAX]],
                same=same,
                decisions_left_out=max(0, len(decisions) - SHOWN_MAX),
                trace_left_out=max(0, len(traces) - SHOWN_MAX),
            )
        )
        page_entry = self._decided[-1]
        self._bytes += len(json.dumps([page_entry.decisions, page_entry.trace]))
        return count

    def page(self) -> TracePage:
        """Return the traced decisions, once all records were applied."""
        return TracePage(**self.past.as_of(), decided=self._decided, next_from=self._next)


def _sequence(entry: tuple[int, Trace]) -> int:
    return entry[0]


def is_decided(past: Past, record: HistoryAppended, event: LogEvent) -> bool:
    """Return whether an event begins a decision of the run, rather than the run itself."""
    run = past.state
    if run is None or isinstance(event, RunStarted | PostsSent | InstanceDeleted):
        return False
    has_graph = past.graph is not None or isinstance(event, GraphStarted)
    return has_graph and run.run_number == record.run_number == past.run_number


def recompute(
    past: Past, events: Sequence[LogEvent], at_ms: int, graph: Graph | None = None
) -> tuple[Draft, int, bool]:
    """Recompute a decision. Events that no planner decides are taken together.

    Args:
        past: The run before the decision.
        events: Events from the first of the decision on.
        at_ms: Time of their record, Unix milliseconds.
        graph: Definition to decide with; None for that of the run.

    Returns:
        The draft, the number of events of the decision, and whether they are the same.
    """
    run, first = past.run, events[0]
    if graph is None:
        graph = past.graph
        if isinstance(first, GraphStarted):
            graph = graph_of(json.loads(first.document))
    assert graph is not None  # noqa: S101, GraphStarted comes first
    draft = Draft(run, graph, at_ms, past.evaluator)
    action = _trigger(run, events)
    if action is None:
        return draft, _count_until(events, _TRIGGERS), True
    before = plans = 0

    def counted_action(draft: Draft) -> None:
        nonlocal before, plans
        action(draft)
        before, plans = len(draft.events), len(draft.plans)

    act_and_advance(draft, counted_action)
    if _begins_with(events, draft.events):
        return draft, len(draft.events), True
    decided_events = [event for event in events if not isinstance(event, RunSuspended)]
    if draft.ended_nodes >= ENDED_MAX and _begins_with(draft.events, decided_events):
        # The decision ended nodes before this event, too, and so reached its limit earlier.
        draft.plans[:] = [plan for plan in draft.plans if plan[0] < len(events)]
        return draft, len(events), True
    if _begins_with(events, draft.events[:before]) and _was_due(events[before:]):
        # Several things were due at once; their consequences come after the last of them.
        del draft.plans[plans:]
        return draft, before, True
    draft.plans.clear()
    return draft, _count_until(events, (PostsSent,)), False


def _was_due(events: Sequence[LogEvent]) -> bool:
    """Return whether events begin with another one that was due at the same time."""
    match events:
        case [TasksDispatched(tasks=(first, *_)), *_]:
            return first.input is None
        case [TokenCompleted() | TokenFailed() | TokensTimedOut() | FanInActivated(), *_]:
            return True
        case [LeaseExpired(), *_]:
            return True
        case _:
            return False


def _count_until(events: Sequence[LogEvent], kinds: tuple[type, ...]) -> int:
    """Return how many events precede the next one of some kinds. The first always counts."""
    positions = (index for index, event in enumerate(events) if index and isinstance(event, kinds))
    return next(positions, len(events))


def _begins_with(events: Sequence[LogEvent], prefix: Sequence[LogEvent]) -> bool:
    count = len(prefix)
    return 0 < count <= len(events) and all(map(is_same_event, events[:count], prefix))


def is_same_event(recorded: LogEvent, decided: LogEvent) -> bool:
    """Return whether an event is decided as it is recorded.

    The owner chooses the deployment of a child when it appends the event that starts it.
    """
    return recorded == decided or (
        isinstance(recorded, PostsQueued)
        and isinstance(decided, PostsQueued)
        and [_without_deployment(post) for post in recorded.posts]
        == [_without_deployment(post) for post in decided.posts]
    )


def _without_deployment(post: Post) -> Post:
    if not isinstance(post.command, StartRun):
        return post
    command = msgspec.structs.replace(post.command, deployment=None)
    return msgspec.structs.replace(post, command=command)


def _trigger(  # noqa: PLR0911, one for each kind of event
    run: GraphRun, events: Sequence[LogEvent]
) -> Callable[[Draft], None] | None:
    """Return the action that was decided, from its events; None if it cannot be repeated."""
    first = events[0]
    match first:
        case _ if run.sequence == 1 and not isinstance(first, GraphStarted):
            # Only its RunStarted precedes: it retries another run.
            return continue_failed
        case GraphStarted():
            return lambda draft: begin(draft, first)
        case TokenCompleted(token=number) | TokenFailed(token=number, retry_at_ms=None) if (
            number in run.tokens
        ):
            return _trigger_of_end(run, run.tokens[number], first)
        case TokensTimedOut(tokens=(number, *_)) | FanInActivated(tokens=(number, *_)):
            waiting = run.tokens.get(number)
            if waiting is None or waiting.fork is None:
                return None
            key = meeting_key(waiting.fork, waiting.node)
            return lambda draft: deadline_passed(draft, key)
        case TasksDispatched(tasks=tasks):
            retried = [task.token for task in tasks if task.input is None]
            return (lambda draft: dispatch_retries(draft, retried)) if retried else _nothing
        case TokensCancelled(reason=reason):
            ended = next((event for event in events if isinstance(event, RunTerminated)), None)
            if ended is not None:
                return lambda draft: end(draft, ended, reason)
            return None if first.kept else _trigger_of_failed_branch(run, first.tokens)
        case _ if run.ended or isinstance(first, _UNPLANNED):
            return None
        case _:
            # No planner decides it, but what follows.
            return lambda draft: draft.emit(cast("RunEvent", first))


def _trigger_of_failed_branch(
    run: GraphRun, cancelled: Sequence[int]
) -> Callable[[Draft], None] | None:
    """Return the timeout of a join in a branch that failed with it."""
    tokens = (run.tokens[number] for number in cancelled if number in run.tokens)
    keys = {meeting_key(token.fork or "", token.node) for token in tokens if token.is_at_join}
    timed_out = min(((run.times[key], key) for key in keys if key in run.times), default=None)
    return None if timed_out is None else lambda draft: deadline_passed(draft, timed_out[1])


def _nothing(draft: Draft) -> None:
    """Do nothing: what follows was left by an earlier decision."""


def _trigger_of_end(
    run: GraphRun, token: LiveToken, event: TokenCompleted | TokenFailed
) -> Callable[[Draft], None]:
    """Return the action with which a node ended."""
    if token.number in run.held:
        return lambda draft: apply_held(draft, token)
    if token.status is TokenStatus.WAITING_FOR_TIME:
        return lambda draft: end_wait(draft, token)
    # A result that the run could not continue with is in the failure.
    if event.result is not None:
        result, consumed = event.result, event.consumed
        return lambda draft: complete(draft, token, result, consumed)
    assert not isinstance(event, TokenCompleted)  # noqa: S101, it has a result
    if event.timed_out and token.waits_for_others:
        return lambda draft: deadline_passed(draft, str(token.number))
    failure, timed_out = event.failure, event.timed_out
    return lambda draft: fail_node(draft, token, failure, timed_out=timed_out)


# -- traces of events


def _traces_of(event: LogEvent) -> Iterator[Trace]:
    change = status_change(event)
    if change is not None:
        status, tokens = change
        named = [str(number) for number in tokens[:_NAMED_MAX]]
        payload: dict[str, Any] = {"status": status, "count": len(tokens), "token_ids": named}
        token = named[0] if len(tokens) == 1 else None
        yield Trace("operation.tokens.status_updated", token, payload=payload)
