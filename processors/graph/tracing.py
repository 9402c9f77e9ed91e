"""How the decisions of a run came about: each is made again from the state before it.

Nothing of a trace is stored. Decisions are pure and histories are whole, so what the planners said
is said again when somebody asks, of any run there ever was. The events of the history tell whether
it is the same decision: if another release made it, and made it otherwise, that is said, and what
its events say of themselves is all that is told.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from headwater.processors.graph.advancing import begin, complete
from headwater.processors.graph.decide import follow, meeting_timed_out
from headwater.processors.graph.decisions import Trace, as_dict
from headwater.processors.graph.draft import Draft
from headwater.processors.graph.graph import graph_of
from headwater.processors.graph.introspection import SHOWN_MAX
from headwater.processors.graph.past import Past, moment
from headwater.processors.graph.state import GraphRun, meeting_key
from headwater.schemas.history import (
    FanInActivated,
    GraphStarted,
    HistoryAppended,
    InstanceDeleted,
    JobActivated,
    LeaseExpired,
    LogEvent,
    PostsSent,
    RunResumed,
    RunStarted,
    SubworkflowStarted,
    TasksDispatched,
    TaskUnderWay,
    TokenArrived,
    TokenCompleted,
    TokenFailed,
    TokensCancelled,
    TokensCreated,
    TokensTimedOut,
)
from headwater.schemas.introspection import TracedDecision, TracePage

#: Decisions of one answer, and bytes of it after which no other begins.
PAGE_MAX: Final = 100
_PAGE_BYTES: Final = 1024 * 1024
#: Tokens that a trace names.
_NAMED_MAX: Final = 20
#: Events that may be the first of what a planner was asked for.
_TRIGGERS: Final = (
    GraphStarted,
    TokenCompleted,
    TokenFailed,
    TokensTimedOut,
    FanInActivated,
    RunResumed,
    PostsSent,
)


class Tracing:
    """A run that is folded, and whose decisions in a range are made again on the way.

    Shape:  first and last are numbers of events; decisions that begin there are told. Records come
            as for `Past`.
    """

    def __init__(self, past: Past, first: int = 0, limit: int = PAGE_MAX) -> None:
        self.past = past
        self._first = first
        self._limit = limit
        self._bytes = 0
        self._decided: list[TracedDecision] = []
        self._next: int | None = None

    def is_done(self) -> bool:
        """Whether nothing that comes could change the answer."""
        return self._next is not None or self.past.is_done()

    def apply(self, record: HistoryAppended) -> None:
        """Applies a record that counts, decision by decision."""
        past = self.past
        if not past.is_wanted(record):
            return
        events: Sequence[LogEvent] = record.events
        while events and not self.is_done():
            if not self._is_asked(record, events[0]):
                past.apply_event(record, events[0])
                events = events[1:]
                continue
            if len(self._decided) >= self._limit or self._bytes > _PAGE_BYTES:
                self._next = past.sequence + 1
                return
            events = events[self._decide(record, events) :]

    def _is_asked(self, record: HistoryAppended, event: LogEvent) -> bool:
        """Whether what begins with an event is to be told; what no graph decided never is."""
        past = self.past
        run = past.state
        if run is None or isinstance(event, RunStarted | PostsSent | InstanceDeleted):
            return False
        begun = past.graph is not None or isinstance(event, GraphStarted)
        mine = run.run_number == record.run_number == past.run_number
        return begun and mine and run.sequence >= self._first

    def _decide(self, record: HistoryAppended, events: Sequence[LogEvent]) -> int:
        """Makes the decision again that some events begin with; gives how many of them it has."""
        past, first = self.past, self.past.sequence + 1
        draft, count, same = _again(past, events, record.at_ms)
        told = [(first + at, trace) for at, planned in draft.plans for trace in planned.events]
        decisions = [each for _, planned in draft.plans for each in planned.decisions]
        made = events[:count]
        told += [(first + at, trace) for at, event in enumerate(made) for trace in _of(event)]
        told.sort(key=_sequence)
        for event in made:
            past.apply_event(record, event)
        last = past.sequence
        told.append((last, Trace("dispatch.batch.complete", payload={"events": count})))
        self._decided.append(
            TracedDecision(
                sequence=first,
                last_sequence=last,
                at=moment(record.at_ms),
                events=[type(each).__name__ for each in made],
                decisions=[as_dict(each) for each in decisions[:SHOWN_MAX]],
                trace=[as_dict(trace) | {"sequence": at} for at, trace in told[:SHOWN_MAX]],
                same=same,
                decisions_left_out=max(0, len(decisions) - SHOWN_MAX),
                trace_left_out=max(0, len(told) - SHOWN_MAX),
            )
        )
        shown = self._decided[-1]
        self._bytes += len(json.dumps([shown.decisions, shown.trace]))
        return count

    def page(self) -> TracePage:
        """What was told, once all records were applied."""
        return TracePage(**self.past.as_of(), decided=self._decided, next_from=self._next)


def _sequence(told: tuple[int, Trace]) -> int:
    return told[0]


def _again(past: Past, events: Sequence[LogEvent], at_ms: int) -> tuple[Draft, int, bool]:
    """Makes a decision again.

    Shape:  (the run before it, the events from its first on) -> its draft, how many of the events
            it has, whether they are the same. What no planner decides is taken together.
    """
    run, first = past.run, events[0]
    graph = past.graph
    if isinstance(first, GraphStarted):
        graph = graph_of(json.loads(first.document))
    assert graph is not None  # noqa: S101, nothing else follows the beginning of a run
    draft = Draft(run, graph, at_ms, past.evaluator)
    what = _trigger(run, first)
    if what is None:
        return draft, _until(events, _TRIGGERS), True
    before = plans = 0

    def whole(draft: Draft) -> None:
        nonlocal before, plans
        what(draft)
        before, plans = len(draft.events), len(draft.plans)

    follow(draft, whole)
    if _begins(events, draft.events):
        return draft, len(draft.events), True
    if before and _begins(events, draft.events[:before]):
        # Time has moved several things at once; what follows comes after the last of them.
        del draft.plans[plans:]
        return draft, before, True
    draft.plans.clear()
    return draft, _until(events, (PostsSent,)), False


def _until(events: Sequence[LogEvent], kinds: tuple[type, ...]) -> int:
    """How many events come before one of some kinds, the first in any case."""
    found = (at for at, each in enumerate(events) if at and isinstance(each, kinds))
    return next(found, len(events))


def _begins(events: Sequence[LogEvent], with_these: Sequence[LogEvent]) -> bool:
    count = len(with_these)
    return 0 < count <= len(events) and list(events[:count]) == list(with_these)


def _trigger(run: GraphRun, first: LogEvent) -> Callable[[Draft], None] | None:
    """What had a planner decide, by the first event that came of it; None if nobody was asked."""
    match first:
        case GraphStarted():

            def starting(draft: Draft) -> None:
                draft.emit(first)
                begin(draft)

            return starting
        # One that the run could not go on with has failed with its result.
        case (
            TokenCompleted(token=number, result=str(result))
            | TokenFailed(token=number, result=str(result))
        ) if number in run.tokens:
            token = run.tokens[number]
            return lambda draft: complete(draft, token, result)
        case TokensTimedOut(tokens=(number, *_)) | FanInActivated(tokens=(number, *_)):
            waiting = run.tokens.get(number)
            if waiting is None or waiting.fork is None:
                return None
            key = meeting_key(waiting.fork, waiting.node)
            return lambda draft: meeting_timed_out(draft, key)
        case RunResumed():
            return lambda draft: draft.emit(first)
        case _:
            return None


# -- what events say of themselves


def _of(event: LogEvent) -> Iterator[Trace]:
    changed = _changed(event)
    if changed is not None:
        status, tokens = changed
        named = [str(number) for number in tokens[:_NAMED_MAX]]
        payload: dict[str, Any] = {"status": status, "count": len(tokens), "token_ids": named}
        token = named[0] if len(tokens) == 1 else None
        yield Trace("operation.tokens.status_updated", token, payload=payload)


def _changed(event: LogEvent) -> tuple[str, Sequence[int]] | None:  # noqa: PLR0911, C901, PLR0912
    """The status that an event gives to tokens."""
    match event:
        case TokensCreated(first=first, count=count):
            return "pending", range(first, first + count)
        case TasksDispatched(tasks=tasks):
            return "dispatched", [each.token for each in tasks]
        case LeaseExpired(token=token):
            return "dispatched", [token]
        case TaskUnderWay(token=token) | JobActivated(token=token):
            return "executing", [token]
        case TokenCompleted(token=token):
            return "completed", [token]
        case TokenFailed(token=token, retry_at_ms=again, timed_out=late):
            status = "pending" if again is not None else "timed_out" if late else "failed"
            return status, [token]
        case TokenArrived(token=token):
            return "waiting_for_siblings", [token]
        case SubworkflowStarted(token=token):
            return "waiting_for_subworkflow", [token]
        case FanInActivated(tokens=tokens):
            return "completed", tokens
        case TokensCancelled(tokens=tokens):
            return "cancelled", tokens
        case TokensTimedOut(tokens=tokens):
            return "timed_out", tokens
        case _:
            return None
