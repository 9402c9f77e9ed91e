"""A decision in the making: the events so far, and the run as it will be after them.

Many things follow from one result, each from what came before it: branches meet, a token goes on,
its task begins. So each event is applied at once, to a draft that keeps what differs from the run
and leaves the run alone; whoever appends the events applies them to the run.
"""

import copy
import json
from collections.abc import Iterator, MutableMapping
from typing import Any, Final, TypeVar

from typing_extensions import override

from headwater.processors.evaluations import Evaluations, Evaluator
from headwater.processors.graph.appliers import apply
from headwater.processors.graph.decisions import Decision, Planned
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.scope import Branch, Context, Scope
from headwater.processors.graph.state import GraphRun, LiveBranch, LiveToken, place
from headwater.processors.graph.tokens import Fork, Token
from headwater.schemas.history import Json, RunEvent

K = TypeVar("K")
V = TypeVar("V")
_GONE: Final[Any] = object()
_TEXT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Overlay(MutableMapping[K, V]):
    """A dictionary and what differs from it."""

    __slots__ = ("_base", "_changed")

    def __init__(self, base: MutableMapping[K, V]) -> None:
        self._base = base
        self._changed: dict[K, V] = {}

    @override
    def __getitem__(self, key: K) -> V:
        found = self._changed.get(key, self)
        if found is self:
            return self._base[key]
        if found is _GONE:
            raise KeyError(key)
        return found  # type: ignore[return-value]

    @override
    def __setitem__(self, key: K, value: V) -> None:
        self._changed[key] = value

    @override
    def __delitem__(self, key: K) -> None:
        self[key]
        self._changed[key] = _GONE

    @override
    def __iter__(self) -> Iterator[K]:
        changed = self._changed
        for key in self._base:
            if changed.get(key) is not _GONE:
                yield key
        for key in changed:
            if key not in self._base and changed[key] is not _GONE:
                yield key

    @override
    def __len__(self) -> int:
        return sum(1 for _ in self)


class Draft:
    """A decision about a run of a graph."""

    def __init__(
        self, run: GraphRun, graph: Graph, now_ms: int, evaluator: Evaluator | None = None
    ) -> None:
        self.graph = graph
        self.now_ms = now_ms
        self.evaluator = evaluator
        #: Of the whole decision, whatever is taken back of it.
        self.evaluations = Evaluations(evaluator)
        self.events: list[RunEvent] = []
        #: What planners answered, each with the number of events that were decided before.
        self.plans: list[tuple[int, Planned]] = []
        self._of = run
        self.take_back()

    def take_back(self) -> None:
        """Begins again with the run as it is; what planners answered is kept for who looks."""
        run = self._of
        self.events.clear()
        self.plans[:] = [(0, planned) for _, planned in self.plans]
        self._context = context_of(run)
        draft: Any = copy.copy(run)
        for name in ("tokens", "forks", "branches", "meetings", "times"):
            setattr(draft, name, Overlay(getattr(run, name)))
        # What appliers change in place is the draft's own.
        draft.mailbox, draft.unsent = list(run.mailbox), list(run.unsent)
        draft.received, draft.keys = dict(run.received), dict(run.keys)
        self.run: GraphRun = draft

    def emit(self, *events: RunEvent) -> None:
        """Decides events, in this order."""
        for event in events:
            apply(self.run, event, self.now_ms)
            self.events.append(event)

    def hear(self, planned: Planned) -> tuple[Decision, ...]:
        """Keeps what a planner answers, for who looks at how it came about; gives its decisions."""
        self.plans.append((len(self.events), planned))
        return planned.decisions

    # -- what expressions see

    def scope(self, token: LiveToken) -> Scope:
        """What the expressions of a token see."""
        return Scope(self.context(), self._branch(token), self._items(token), self.evaluations)

    def context(self) -> Context:
        """What all tokens see."""
        run = self.run
        known = self._context
        if known.state is not run.shared or known.output is not run.results:
            self._context = known.with_changes(state=run.shared, output=run.results)
        return self._context

    def _branch(self, token: LiveToken) -> Branch | None:
        if token.place is None:
            return None
        return Branch(token.branch, token.total, self.branch_of(token).output)

    def branch_of(self, token: LiveToken) -> LiveBranch:
        """The branch that a token in a fork is in."""
        return self.run.branches[token.place or ""]

    def _items(self, token: LiveToken) -> dict[str, Any]:
        """The items of the forks around a token; the innermost wins."""
        found: dict[str, Any] = {}
        fork, number = token.fork, token.branch
        while fork is not None:
            branch = self.run.branches[place(fork, number)]
            if branch.item_name is not None:
                found.setdefault(branch.item_name, branch.item)
            origin = self.run.forks[fork].origin
            fork, number = origin.fork, origin.branch
        return found

    # -- as the planners see it

    def fork_of(self, name: str) -> Fork:
        """A fork, as the planners see it."""
        fork = self.run.forks[name]
        return Fork(id=name, group=fork.group, total=fork.total, origin=planned(fork.origin))


def context_of(run: GraphRun) -> Context:
    """The context of a run, made once for as long as nothing in it changes."""
    known: Context | None = run.__dict__.get("context")
    if known is None or known.state is not run.shared or known.output is not run.results:
        known = Context(input=run.input, state=run.shared, output=run.results)
        run.__dict__["context"] = known
    return known


def planned(token: LiveToken) -> Token:
    """A token, as the planners see it."""
    return Token(
        id=str(token.number),
        node_ref=token.node,
        path_id=token.path,
        parent_token_id=None if token.parent is None else str(token.parent),
        sibling_group=token.group,
        branch_index=token.branch,
        branch_total=token.total,
        iteration_counts=token.taken,
        fork=token.fork,
    )


def text_of(value: Any) -> Json:  # noqa: ANN401, any JSON value
    """A value as JSON text."""
    return _TEXT(value)
