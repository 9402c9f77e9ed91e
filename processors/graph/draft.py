"""A decision in progress: its events so far, the run after them, and the end of the run."""

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import msgspec
from typing_extensions import override

from headwater.processors.evaluations import Evaluations, Evaluator
from headwater.processors.graph.appliers import apply
from headwater.processors.graph.context import BRANCH, Branch, Context, Scope
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.outcomes import decide_cancel, decide_run_failure
from headwater.processors.graph.planning import Decision, FailWorkflow, Fork, Planned, Token
from headwater.processors.graph.state import (
    GraphRun,
    LiveBranch,
    LiveToken,
    taken_of,
)
from headwater.processors.graph.wait_index import due_ms, index_of
from headwater.processors.runs.outbox import ended_by, posts_to_end
from headwater.schemas.history import (
    Failure,
    Json,
    Post,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunTerminated,
    TokensCancelled,
)

K = TypeVar("K")
V = TypeVar("V")
_DELETED: Final[Any] = object()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Overlay(MutableMapping[K, V]):
    """A mapping that records changes to another mapping without modifying it."""

    __slots__ = ("_base", "_changed")

    def __init__(self, base: MutableMapping[K, V]) -> None:
        self._base = base
        self._changed: dict[K, V] = {}

    @override
    def __getitem__(self, key: K) -> V:
        changed = self._changed
        if key not in changed:
            return self._base[key]
        value = changed[key]
        if value is _DELETED:
            raise KeyError(key)
        return value

    # The inherited methods raise and catch KeyError, which takes longer; appliers call them often.

    @override
    def get(self, key: K, default: Any = None) -> Any:
        changed, base = self._changed, self._base
        if key in changed:
            value = changed[key]
            return default if value is _DELETED else value
        return base.get(key, default)

    @override
    def pop(self, key: K, default: Any = _DELETED) -> Any:
        value = self.get(key, _DELETED)
        if value is not _DELETED:
            self._changed[key] = _DELETED
            return value
        if default is _DELETED:
            raise KeyError(key)
        return default

    @override
    def __contains__(self, key: object) -> bool:
        changed: dict[Any, Any] = self._changed
        value = changed.get(key, self)
        return key in self._base if value is self else value is not _DELETED

    @override
    def __setitem__(self, key: K, value: V) -> None:
        self._changed[key] = value

    @override
    def __delitem__(self, key: K) -> None:
        self[key]
        self._changed[key] = _DELETED

    @override
    def __iter__(self) -> Iterator[K]:
        changed = self._changed
        for key in self._base:
            if changed.get(key) is not _DELETED:
                yield key
        for key in changed:
            if key not in self._base and changed[key] is not _DELETED:
                yield key

    @override
    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def changes(self) -> Mapping[K, V]:
        """The changes, deletions as `_DELETED`."""
        return self._changed

    def __bool__(self) -> bool:
        if not self._changed:
            return bool(self._base)
        return next(iter(self), self) is not self


def changes_of(mapping: MutableMapping[K, V]) -> Mapping[K, V]:
    """Return the changes of an overlay, deletions as `_DELETED`."""
    assert isinstance(mapping, Overlay)  # noqa: S101, as in all drafts
    return mapping.changes


class Mark(NamedTuple):
    """A position in a draft: events and planner results so far."""

    events: int
    plans: int


class FailedJoin(NamedTuple):
    """A token at a join, and why outputs could not be merged.

    Attributes:
        before: Position in the draft before the join was activated.
    """

    token: int
    failure: Failure
    before: Mark


class Draft:
    """A decision about a graph run, with the events so far applied.

    One result causes many events, and an event depends on the previous ones: branches join, a token
    continues, its task is dispatched. So a draft applies every event at once to an overlay and
    leaves the run itself unchanged. The caller that appends the events applies them to the run.
    """

    def __init__(
        self, run: GraphRun, graph: Graph, now_ms: int, evaluator: Evaluator | None = None
    ) -> None:
        self.graph = graph
        self.now_ms = now_ms
        self.evaluator = evaluator
        #: Counts for the whole decision, also across `reset`.
        self.evaluations = Evaluations(evaluator)
        self.events: list[RunEvent] = []
        #: Results of planners, with the number of events that were emitted before.
        self.plans: list[tuple[int, Planned]] = []
        #: Characters of inputs and results that it has dispatched, and nodes that it has ended
        #: while it dispatched: see `dispatching`.
        self.dispatched_size = self.ended_nodes = 0
        #: Tokens at joins where outputs could not be merged, whose errors are followed.
        self.failed_joins: list[FailedJoin] = []
        self._of = run
        self._begin()

    def mark(self) -> Mark:
        """Return the position to which `take_back` returns."""
        return Mark(len(self.events), len(self.plans))

    def take_back(self, mark: Mark) -> None:
        """Discard the events after a mark, and the decisions; how they were reached is kept."""
        kept = self.events[: mark.events]
        self.events.clear()
        self.failed_joins = [join for join in self.failed_joins if join.before.events < mark.events]
        self.drop_decisions(mark.plans)
        self.plans[:] = [(min(before, mark.events), planned) for before, planned in self.plans]
        self._begin()
        self.emit(*kept)

    def drop_decisions(self, first: int, kind: type[Decision] | None = None) -> None:
        """Drop decisions that are not carried out; how they were reached is kept.

        Args:
            first: The first planner result whose decisions are dropped.
            kind: Only decisions of this kind.
        """
        for index, (before, planned) in enumerate(self.plans[first:], first):
            kept = tuple(
                decision
                for decision in planned.decisions
                if kind is not None and not isinstance(decision, kind)
            )
            self.plans[index] = (before, Planned(kept, planned.events))

    def _begin(self) -> None:
        """Start from the run, without events."""
        run = self._of
        self._context = context_of(run)
        self.run: GraphRun = msgspec.structs.replace(
            run,
            tokens=Overlay(run.tokens),
            forks=Overlay(run.forks),
            branches=Overlay(run.branches),
            meetings=Overlay(run.meetings),
            gatherings=Overlay(run.gatherings),
            times=Overlay(run.times),
            waits=Overlay(run.waits),
            held=Overlay(run.held),
            # Appliers change these in place.
            mailbox=[*run.mailbox],
            unsent=[*run.unsent],
            received={**run.received},
            keys={**run.keys},
        )

    def emit(self, *events: RunEvent) -> None:
        """Apply events and add them to the decision."""
        for event in events:
            apply(self.run, event, self.now_ms)
            self.events.append(event)

    # -- times and waits, without reading all of them

    def due_until(self, until_ms: int) -> Iterable[tuple[int, str]]:
        """Return the times and keys of what is due until a time, inclusive, in order."""
        times: Mapping[str, int] = self.run.times
        changed = changes_of(self.run.times)
        keys = [due.key for due in index_of(self._of).until(until_ms) if due.key not in changed]
        if not changed:
            return [(times[key], key) for key in keys]
        keys += [
            key
            for key, at_ms in changed.items()
            if at_ms is not _DELETED and due_ms(self.run, key, at_ms) <= until_ms
        ]
        due = sorted((due_ms(self.run, key, times[key]), len(key), key) for key in keys)
        return [(times[key], key) for _, _, key in due]

    def waiting_for(self, event_type: str) -> Iterator[int]:
        """Yield the tokens that wait for events of a type, the oldest first."""
        changed = changes_of(self.run.waits)
        for number in index_of(self._of).waiting_for(event_type):
            if number not in changed:
                yield number
        yield from (number for number, waits in changed.items() if waits == event_type)

    @contextmanager
    def at(self, at_ms: int | None) -> Iterator[None]:
        """Decide as of an earlier time, when something happened that is handled only now."""
        now_ms = self.now_ms
        self.now_ms = now_ms if at_ms is None else min(at_ms, now_ms)
        try:
            yield
        finally:
            self.now_ms = now_ms

    @property
    def now(self) -> datetime:
        """Time of the decision."""
        return _EPOCH + timedelta(milliseconds=self.now_ms)

    def execute(self, planned: Planned) -> tuple[Decision, ...]:
        """Record a planner's result for inspection. Return its decisions, to carry them out.

        A failure of the run is recorded when the run fails: an error transition may handle it.
        """
        decisions, recorded = planned.decisions, planned
        if decisions and isinstance(decisions[-1], FailWorkflow):
            recorded = Planned(decisions[:-1], planned.events)
        self.plans.append((len(self.events), recorded))
        return decisions

    # -- scopes of expressions

    def scope(self, token: LiveToken, error: Failure | None = None) -> Scope:
        """Return the scope for a token's expressions: with this error, or that which led to it."""
        branch, items = None, {}
        if token.fork is not None:
            own = self.branch_of(token)
            branch = Branch(token.branch, token.total, own.output)
            items = self._items(token.fork, own)
        scope = Scope(self.context(), branch, items, self.evaluations, error or token.failure)
        if token.failed is not None:
            scope.local[BRANCH] = {**scope.local[BRANCH], "failed": token.failed}
        return scope

    def context(self) -> Context:
        """Return the shared context."""
        run = self.run
        context = self._context
        if context.state is not run.shared or context.output is not run.results:
            self._context = context.with_changes(state=run.shared, output=run.results)
        return self._context

    def branch_of(self, token: LiveToken) -> LiveBranch:
        """Return the branch of a token that is in a fork."""
        return self.run.branches[token.branch_key]

    def _items(self, fork: str, branch: LiveBranch) -> dict[str, Any]:
        """Return the items of a branch and of the forks around it; the innermost wins."""
        items: dict[str, Any] = {}
        while True:
            if branch.item_name is not None and branch.item_name not in items:
                items[branch.item_name] = branch.item
            origin = self.run.forks[fork].origin
            if origin.fork is None:
                return items
            fork, branch = origin.fork, self.branch_of(origin)

    # -- views for planners

    def fork_of(self, name: str) -> Fork:
        """Return the planners' view of a fork."""
        fork = self.run.forks[name]
        origin = self.planned(fork.origin)
        return Fork(id=name, group=fork.group, total=fork.total, origin=origin)

    def planned(self, token: LiveToken) -> Token:
        """Return the planners' view of a token."""
        return Token(
            id=str(token.number),
            node_ref=token.node,
            path_id=token.path,
            parent_token_id=None if token.parent is None else str(token.parent),
            sibling_group=token.group,
            branch_index=token.branch,
            branch_total=token.total,
            iteration_counts=taken_of(self.run, token),
            fork=token.fork,
        )


def context_of(run: GraphRun) -> Context:
    """Return the context of a run, cached until something in it changes."""
    context: Context | None = run.__dict__.get("context")
    if context is None or context.state is not run.shared or context.output is not run.results:
        context = Context(input=run.input, state=run.shared, output=run.results)
        run.__dict__["context"] = context
    return context


def text_of(value: Any) -> Json:  # noqa: ANN401, any JSON value
    """Return a value as JSON text."""
    return _TEXT(value)


# -- end of a run


class RunOver(Exception):
    """The run has ended in this draft: nothing follows."""


class CannotContinue(Exception):
    """A decision cannot be carried out: its events are discarded and the run fails."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class JoinFailed(CannotContinue):
    """Branches can no longer join, or a join cannot continue.

    Tokens are where they wait, so a retry of the run evaluates the joins again.
    """


def fail(draft: Draft, failure: Failure, settled: Iterable[int] = ()) -> NoReturn:
    """End a run with an error. Joins whose outputs could not be merged are taken back.

    Args:
        draft: Draft of the run.
        failure: Error of the run.
        settled: Tokens with an end that the draft has recorded already.

    Raises:
        RunOver: Always.
    """
    if draft.failed_joins:
        draft.take_back(draft.failed_joins[0].before)
    draft.plans.append((len(draft.events), decide_run_failure(failure.message, failure.name)))
    end(draft, RunErrored(failure), "the run has failed", settled)
    raise RunOver


def end(
    draft: Draft,
    ended: RunCompleted | RunErrored | RunTerminated,
    reason: str,
    settled: Iterable[int] = (),
    *,
    with_children: bool = True,
) -> None:
    """End a run, its tokens and their children."""
    run = draft.run
    settled_numbers = set(settled)
    tokens = tuple(number for number in run.tokens if number not in settled_numbers)
    cancelled = isinstance(ended, RunTerminated) and ended.cancelled
    children = run.tokens if with_children else ()
    posts = end_children(run, children, "its parent has ended", cancelled=cancelled)
    kept = isinstance(ended, RunErrored)
    for _ in draft.execute(decide_cancel(map(str, tokens), reason)):
        draft.emit(TokensCancelled(tokens, reason, kept))
    draft.emit(*ended_by(run, ended, posts))


def end_children(
    run: GraphRun, numbers: Iterable[int], reason: str, *, cancelled: bool = False
) -> list[Post]:
    """Return posts that end the children of those of `numbers` that wait for one."""
    children = ((number, run.tokens[number].child) for number in numbers)
    return posts_to_end(run, children, reason, cancelled=cancelled)
