"""A naive runner of graphs, to hold planners against: it counts by looking at everything again.

Tokens complete one by one, in whatever order the test draws. Nothing here is fast, and nothing is
remembered that could be looked up.
"""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.context import Branch, Context, Scope, section_of, set_path
from headwater.processors.graph.data_flow import decide_completion, map_input, map_output
from headwater.processors.graph.definition import Transition
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.joins import (
    Arrival,
    decide_branch_end,
    decide_continuation,
    decide_synchronization,
    decide_timeout,
)
from headwater.processors.graph.planning import (
    ActivateFanIn,
    ApplyBranchOutput,
    CancelTokens,
    CompleteTokens,
    CompleteWorkflow,
    Counts,
    CreateToken,
    Decision,
    FailWorkflow,
    Fork,
    InitializeWorkflow,
    MarkForDispatch,
    MarkWaiting,
    SetContext,
    Token,
    TokenParams,
)
from headwater.processors.graph.routing import decide_routing, decide_start
from headwater.schemas.history import Failure

READY, WAITING, DONE, CANCELLED = "ready", "waiting", "done", "cancelled"
#: What a result changes, and takes back if the run cannot go on with it.
_STATE = ("tokens", "status", "came_by", "forks", "outputs", "items", "activated", "merged")


class Model:
    """One run of a graph."""

    def __init__(self, graph: Graph, given: object) -> None:
        self.graph = graph
        self.tokens: dict[str, Token] = {}
        self.status: dict[str, str] = {}
        self.came_by: dict[str, str] = {}
        self.forks: dict[str, Fork] = {}
        self.outputs: dict[tuple[str, int], dict[str, Any]] = {}
        self.items: dict[tuple[str, int], tuple[str, Any]] = {}
        self.context = Context(input=given, state={}, output={})
        self.activated: Counter[tuple[str, str]] = Counter()
        self.merged: dict[tuple[str, str], set[int]] = {}
        self.output: dict[str, Any] | None = None
        self.errors: dict[str, Failure] = {}
        self.error: str | None = None
        self.apply(decide_start(graph, given).decisions, None)

    def ready(self) -> list[str]:
        return [item for item, status in self.status.items() if status == READY]

    def run(self, pick: Callable[[list[str]], str], result: Callable[[Token, Any], Any]) -> None:
        while self.error is None and (ready := self.ready()):
            token = self.tokens[pick(ready)]
            provided = map_input(self.graph, token.node_ref, self.scope(token))
            assert not isinstance(provided, EvaluationProblem)
            self.complete(token, result(token, provided))
        if self.error is None:
            self.finish()

    def finish(self) -> None:
        self.apply(decide_completion(self.graph, Scope(self.context)).decisions, None)

    def complete(self, token: Token, result: object) -> None:
        """Takes a result; one with which the run cannot go on changes nothing but that it fails."""
        self._all_or_nothing(lambda: self._complete(token, result))

    def time_out(self, fork: str, node_ref: str) -> None:
        """Those who wait at a meeting point have waited too long."""
        self._all_or_nothing(lambda: self._time_out(fork, node_ref))

    def _all_or_nothing(self, what: Callable[[], None]) -> None:
        before = {name: copy.copy(getattr(self, name)) for name in _STATE}
        context = self.context
        what()
        if self.error is not None:
            self.context = context
            for name, value in before.items():
                setattr(self, name, value)

    def _time_out(self, fork: str, node_ref: str) -> None:
        waiting = self.waiting(fork, node_ref)
        transition = self.graph.transition(self.came_by[waiting[0].id])
        for decision in decide_timeout(transition, waiting).decisions:
            if isinstance(decision, ActivateFanIn | FailWorkflow):
                self.apply((decision,), waiting[0])
        self.settle()

    def _complete(self, token: Token, result: object) -> None:
        self.apply(map_output(self.graph, token, self.scope(token), result).decisions, token)
        if self.error is not None:
            return
        self.status[token.id] = DONE
        planned = decide_routing(self.graph, token, self.scope(token), self.forks.__getitem__)
        self.apply(planned.decisions, token)
        self.settle()

    def fail_over(self, token: Token, failure: Failure) -> None:
        """The node of a token has failed, and its error transitions are followed."""
        self.status[token.id] = DONE
        before = set(self.tokens)
        routed = decide_routing(
            self.graph,
            token,
            self.scope(token, failure),
            self.forks.__getitem__,
            failed_node=True,
        )
        self.apply(routed.decisions, token)
        self.errors |= dict.fromkeys(self.tokens.keys() - before, failure)
        self.settle()

    def scope(self, token: Token, error: Failure | None = None) -> Scope:
        items: dict[str, Any] = {}
        at, branch = token, None
        while at.fork is not None:
            key = (at.fork, at.branch_index)
            branch = branch or Branch(key[1], at.branch_total, self.outputs.get(key, {}))
            if key in self.items:
                items.setdefault(*self.items[key])
            at = self.forks[at.fork].origin
        error = error or self.errors.get(token.id)
        return Scope(self.context, branch, items, error=error)

    # -- decisions

    def apply(self, decisions: tuple[Decision, ...], token: Token | None) -> None:
        arrivals = []
        for decision in decisions:
            if isinstance(decision, CreateToken):
                created = self.create(decision.params, token)
                if decision.params.transition_ref is not None and token is not None:
                    arrivals.append(
                        (created, self.graph.transition(decision.params.transition_ref))
                    )
            else:
                self.apply_one(decision, token)
        for created, transition in arrivals:
            if self.error is None and transition.synchronization is not None:
                self.arrive(created, transition)

    def apply_one(self, decision: Decision, token: Token | None) -> None:
        match decision:
            case SetContext(path=path, value=value):
                section, rest = section_of(path)
                changed = set_path(getattr(self.context, section), rest, value)
                self.context = self.context.with_changes(**{section: changed})
            case ApplyBranchOutput(token_id=token_id, output=output):
                owner = self.tokens[token_id]
                assert owner.fork is not None
                self.outputs[owner.fork, owner.branch_index] = dict(output)
            case CompleteTokens(token_ids=ids):
                self.status.update(dict.fromkeys(ids, DONE))
            case CancelTokens(token_ids=ids):
                self.status.update(dict.fromkeys(ids, CANCELLED))
            case ActivateFanIn():
                self.activate(decision, token)
            case CompleteWorkflow(output=output):
                self.output = dict(output)
            case FailWorkflow(error=error):
                self.error = error
            case InitializeWorkflow():
                pass
            case _:
                raise AssertionError(decision)

    def create(self, params: TokenParams, origin: Token | None) -> Token:
        token = Token(
            id=str(len(self.tokens)),
            node_ref=params.node_ref,
            path_id=params.path_id,
            parent_token_id=params.parent_token_id,
            sibling_group=params.sibling_group,
            branch_index=params.branch_index,
            branch_total=params.branch_total,
            iteration_counts=params.iteration_counts,
            fork=params.fork,
        )
        if params.fork is not None and params.fork not in self.forks:
            assert origin is not None
            self.forks[params.fork] = Fork(
                id=params.fork,
                group=params.sibling_group,
                total=params.branch_total,
                origin=origin,
            )
        if params.item_var is not None and params.fork is not None:
            self.items[params.fork, params.branch_index] = (params.item_var, params.item)
        self.tokens[token.id], self.status[token.id] = token, READY
        self.came_by[token.id] = params.transition_ref or ""
        return token

    # -- meeting points

    def arrive(self, token: Token, transition: Transition) -> None:
        if self.status[token.id] != READY:
            return
        waiting = self.waiting(token.fork, token.node_ref)
        counts = self.counts(token.fork, token.node_ref, token) if token.fork else None
        counts = counts or Counts(total=0, completed=0, terminal=0)
        planned = decide_synchronization(transition, token, counts, [item.id for item in waiting])
        (decision,) = planned.decisions
        if isinstance(decision, MarkWaiting):
            self.status[token.id] = WAITING
        elif not isinstance(decision, MarkForDispatch):
            self.apply((decision,), token)

    def waiting(self, fork: str | None, node_ref: str) -> list[Token]:
        return [
            token
            for token in self.tokens.values()
            if self.status[token.id] == WAITING and (token.fork, token.node_ref) == (fork, node_ref)
        ]

    def branch_of(self, token: Token, fork: str) -> int | None:
        at = token
        while at.fork is not None:
            if at.fork == fork:
                return at.branch_index
            at = self.forks[at.fork].origin
        return None

    def counts(self, fork: str, node_ref: str, arrived: Token | None = None) -> Counts:
        here = self.waiting(fork, node_ref) + ([arrived] if arrived else [])
        moving = set()
        for token in self.tokens.values():
            # Who waits at a meeting point of this fork brings nothing more; of a nested one, may.
            stays = self.status[token.id] == WAITING and token.fork == fork
            if self.status[token.id] in (READY, WAITING) and not stays and token is not arrived:
                moving.add(self.branch_of(token, fork))
        total = self.forks[fork].total
        return Counts(
            total=total,
            completed=len({item.branch_index for item in here}),
            terminal=total - len(moving - {None}),
        )

    def settle(self) -> None:
        """Branches that ended elsewhere may settle meeting points, and those again others."""
        settled = True
        while settled and self.error is None:
            settled = False
            for token in list(self.tokens.values()):
                if self.status[token.id] != WAITING or token.fork is None:
                    continue
                transition = self.graph.transition(self.came_by[token.id])
                waiting = self.waiting(token.fork, token.node_ref)
                counts = self.counts(token.fork, token.node_ref)
                planned = decide_branch_end(transition, waiting, counts)
                if planned.decisions:
                    self.apply(planned.decisions, token)
                    settled = True
                    break

    def activate(self, found: ActivateFanIn, token: Token | None) -> None:
        assert found.fork is not None
        assert token is not None
        fork = self.forks.get(found.fork)
        if fork is None:
            group = found.fan_in_path.partition(":")[0]
            fork = self.forks[found.fork] = Fork(id=found.fork, group=group, total=0, origin=token)
        key = (found.fork, found.node_ref)
        self.activated[key] += 1
        arrivals = [
            Arrival(
                token_id=item,
                branch_index=self.tokens[item].branch_index,
                transition_ref=self.came_by[item],
                iteration_counts=self.tokens[item].iteration_counts,
                output=self.outputs.get((found.fork, self.tokens[item].branch_index), {}),
            )
            for item in found.merged_token_ids
        ]
        self.merged[key] = {arrival.branch_index for arrival in arrivals}
        in_flight = [
            token.id
            for token in self.tokens.values()
            if self.branch_of(token, found.fork) is not None
            and token.id not in found.merged_token_ids
            and (
                self.status[token.id] == READY
                or (self.status[token.id] == WAITING and token.fork != found.fork)
            )
        ]
        origin = fork.origin
        around = None
        if origin.fork is not None:
            around = self.outputs.get((origin.fork, origin.branch_index), {})
        planned = decide_continuation(
            self.graph,
            self.graph.transition(found.transition_ref),
            fork,
            arrivals,
            in_flight=in_flight,
            enclosing_output=around,
            came_by=found.came_by,
        )
        for decision in planned.decisions:
            if isinstance(decision, CreateToken):
                self.create(decision.params, None)
            else:
                self.apply_one(decision, token)
