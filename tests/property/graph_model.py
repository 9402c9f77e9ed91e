"""A naive runner of graphs, to hold planners against: it counts by looking at everything again.

Tokens complete one by one, in whatever order the test draws. Nothing here is fast, and nothing is
remembered that could be looked up.
"""

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from headwater.processors.evaluations import EvaluationProblem, Evaluations
from headwater.processors.graph.context import Branch, Context, Scope, section_of, set_path
from headwater.processors.graph.data_flow import decide_completion, map_input, map_output
from headwater.processors.graph.definition import Transition
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.joins import Arrival, decide_continuation, decide_timeout
from headwater.processors.graph.planning import (
    ActivateFanIn,
    ApplyBranchOutput,
    CancelTokens,
    CompleteTokens,
    CompleteWorkflow,
    CreateToken,
    Decision,
    FailWorkflow,
    Fork,
    InitializeWorkflow,
    SetContext,
    Token,
    TokenParams,
)
from headwater.processors.graph.routing import decide_routing, decide_start
from headwater.processors.graph.validation import quorum
from headwater.processors.runs.limits import DEFAULT_LIMITS
from headwater.schemas.failures import DEAD_END
from headwater.schemas.history import Failure, Limits

READY, WAITING, DONE, CANCELLED = "ready", "waiting", "done", "cancelled"
FAILED, HELD = "failed", "held"
#: What a result changes, and takes back if the run cannot go on with it.
_STATE = (
    *("tokens", "status", "came_by", "forks", "over", "outputs", "items", "inner"),
    *("activated", "merged", "failed", "came", "held", "errors"),
)


class Model:
    """One run of a graph."""

    def __init__(self, graph: Graph, given: object, limits: Limits = DEFAULT_LIMITS) -> None:
        self.graph = graph
        self.limits = limits
        self.tokens: dict[str, Token] = {}
        self.status: dict[str, str] = {}
        self.came_by: dict[str, str] = {}
        self.forks: dict[str, Fork] = {}
        self.over: set[str] = set()
        self.outputs: dict[tuple[str, int], dict[str, Any]] = {}
        #: Of tokens that left nested forks: their branches there, and the output of the last.
        self.inner: dict[str, tuple[tuple[tuple[int, int], ...], dict[str, Any]]] = {}
        #: The branches of a fork that failed, with their errors.
        self.failed: dict[str, dict[int, str]] = {}
        self.items: dict[tuple[str, int], tuple[str, Any]] = {}
        self.context = Context(input=given, state={}, output={})
        self.activated: Counter[tuple[str, str]] = Counter()
        self.merged: dict[tuple[str, str], set[int]] = {}
        #: Tokens that came to a meeting point, in this order.
        self.came: list[str] = []
        #: Tokens that wait for others on the other ways to their node, as they came.
        self.held: dict[tuple[str | None, int, str, int], tuple[str, ...]] = {}
        self.output: dict[str, Any] | None = None
        self.errors: dict[str, Failure] = {}
        self.error: str | None = None
        #: Whether what came before the error stays.
        self.stays = False
        #: The token of which could not be decided what follows.
        self.undecided: Token | None = None
        #: Whether what could not be decided was so for a limit.
        self.limited = False
        #: Tokens at meeting points where outputs could not be merged, and what was before.
        self.unmerged: list[tuple[str, Failure, dict[str, Any], Context]] = []
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

    def fail(self, token: Token, failure: Failure) -> None:
        """A node has failed for good: its error transitions are followed, or its branch fails."""
        self._all_or_nothing(lambda: self._fail(token, failure))

    def time_out(self, fork: str, node_ref: str) -> None:
        """Those who wait at a meeting point have waited too long."""
        self._all_or_nothing(lambda: self._time_out(fork, node_ref))

    def time_out_into(self, error: str) -> None:
        """Some meeting point has waited too long, and the run fails; no event says which."""
        places = {(token.fork, token.node_ref) for token in self.tokens.values() if token.fork}
        for fork, node_ref in sorted(places, key=str):
            if fork is not None and self.waiting(fork, node_ref) and self.error != error:
                before, context = self._copied(), self.context
                self.error, self.stays = None, False
                self.time_out(fork, node_ref)
                if self.error != error:
                    self._take_back(before, context)

    def restart(self) -> None:
        """A retry decides again what could not be decided, and looks at all meeting points."""
        self.error, self.stays = None, False
        token, self.undecided = self.undecided, None
        if token is not None:
            self._route(token)
        for ids in list(self.held.values()):
            for item in ids:
                if self.error is None:
                    self.join_ways(self.tokens[item])
        for name in list(self.forks):
            self.settle([name])
        for ids in list(self.held.values()):
            if ids:
                self.check_held(self.tokens[ids[0]])
        self.stays = self.error is not None
        self._fail_unmerged()

    def set_output(self, fork: str, index: int, output: dict[str, Any]) -> None:
        """An operator replaces the output of a branch."""
        self.outputs[fork, index] = output
        for token in self.tokens.values():
            if (token.fork, token.branch_index) == (fork, index):
                self.inner.pop(token.id, None)

    def time_out_branch(self, fork: str, index: int, error: str) -> None:
        """Some meeting point in a branch has waited too long, and the branch fails."""
        places = {
            (token.fork, token.node_ref)
            for token in self.tokens.values()
            if token.fork and token.fork != fork and self.branch_of(token, fork) == index
        }
        for name, node_ref in sorted(places, key=str):
            waiting = self.waiting(name, node_ref)
            if waiting and index not in self.failed.get(fork, {}):
                transition = self.graph.transition(self.came_by[waiting[0].id])
                *_, last = decide_timeout(transition, waiting).decisions
                if isinstance(last, FailWorkflow) and last.error == error and name:
                    self._fail_branch(self.forks[name].origin, error)
                    self._fail_unmerged()

    def migrate(self, graph: Graph, names: Mapping[str, str], moved: Collection[str]) -> None:
        """The run goes on in another graph, where nodes have other names."""
        self.graph = graph
        for item in moved:
            token = self.tokens[item]
            node_ref = names.get(token.node_ref, token.node_ref)
            self.tokens[item] = structs.replace(token, node_ref=node_ref)
        self.held = {self.place(self.tokens[ids[0]]): ids for ids in self.held.values() if ids}
        if self.undecided is not None:
            node_ref = names.get(self.undecided.node_ref, self.undecided.node_ref)
            self.undecided = structs.replace(self.undecided, node_ref=node_ref)

    def _all_or_nothing(self, what: Callable[[], None]) -> None:
        before, context = self._copied(), self.context
        what()
        self._fail_unmerged()
        if self.error is not None and not self.stays:
            self._take_back(before, context)

    def _fail_unmerged(self) -> None:
        """The nodes fail where outputs could not be merged; or else they are merged again later."""
        joins, self.unmerged = self.unmerged, []
        if self.error is not None and not self.stays:
            return
        for item, failure, _, _ in joins:
            if self.error is None and self.status[item] == READY:
                self._fail(self.tokens[item], failure)
                joins += self.unmerged
                self.unmerged = []
        if joins and self.error is not None:
            self._take_back(*joins[0][2:])
            self.stays = True

    def _copied(self) -> dict[str, Any]:
        return {name: copy.copy(getattr(self, name)) for name in _STATE}

    def _take_back(self, before: dict[str, Any], context: Context) -> None:
        self.context = context
        for name, value in before.items():
            setattr(self, name, value)

    def _time_out(self, fork: str, node_ref: str) -> None:
        waiting = self.waiting(fork, node_ref)
        transition = self.graph.transition(self.came_by[waiting[0].id])
        for decision in decide_timeout(transition, waiting).decisions:
            match decision:
                case ActivateFanIn():
                    self.activate(fork, node_ref)
                case FailWorkflow(error=error):
                    self._fail_branch(self.forks[fork].origin, error)
                case _:
                    pass

    def _complete(self, token: Token, result: object) -> None:
        mapped = map_output(self.graph, token, self.scope(token), result).decisions
        failed = next((item for item in mapped if isinstance(item, FailWorkflow)), None)
        if failed is not None:
            self._fail(token, Failure(failed.name, failed.error))
            return
        before, context = self._copied(), self.context
        self.apply(mapped, token)
        schema = self.graph.written_schema
        problem = schema and schema.problem(self.context.state, "state", Evaluations(None))
        if problem and context.state is not self.context.state:
            self._take_back(before, context)
            self._fail(token, Failure("ContextInvalidError", problem))
            return
        self.status[token.id] = DONE
        self._route(token)
        # A node that has completed stays so.
        self.stays = self.error is not None

    def _route(self, token: Token) -> None:
        planned = decide_routing(self.graph, token, self.scope(token), self.forks.__getitem__)
        failed = next((item for item in planned.decisions if isinstance(item, FailWorkflow)), None)
        if failed is not None:
            if failed.name == DEAD_END:
                self._fail_branch(token, failed.error)
            else:
                self.error = failed.error
            self.undecided = token if self.error is not None and not self.stays else None
            return
        before, context = self._copied(), self.context
        made = self.apply(planned.decisions, token)
        if self.limited:
            self._take_back(before, context)
            self.undecided = token
            return
        self.check_held(token)
        self.settle([token.fork, *(created.fork for created in made)])

    def _fits(self, new: Sequence[TokenParams | Token]) -> bool:
        """Whether so many tokens may be made, and visit their nodes."""
        if new and len(self.tokens) + len(new) > self.limits.max_tokens:
            self.error = (
                f"expected at most {self.limits.max_tokens} tokens in a run (max_tokens), found "
                f"more with those at {new[-1].node_ref!r}; use child workflows, or does a cycle "
                "have no end?"
            )
        for token in new:
            ways = self.graph.definition.transitions
            visits = sum(
                token.iteration_counts.get(way.ref, 0)
                for way in ways
                if way.to_node_ref == token.node_ref
            ) + (token.node_ref == self.graph.definition.initial_node_ref)
            if visits > self.limits.max_rounds and self.error is None:
                self.error = (
                    f"expected a token to come to a node at most {self.limits.max_rounds} times "
                    f"(max_rounds), found that it comes to {token.node_ref!r} once more; does a "
                    "cycle have no end?"
                )
        return self.error is None

    def _fail(self, token: Token, failure: Failure) -> None:
        forks = self.forks.__getitem__
        scope = self.scope(token, failure)
        routed = decide_routing(self.graph, token, scope, forks, failed_node=True)
        if routed.decisions:
            self.status[token.id] = FAILED
            made = self.apply(routed.decisions, token, failure)
            self.check_held(token)
            self.settle([token.fork, *(created.fork for created in made)])
            return
        self.status[token.id] = FAILED
        self._fail_branch(token, failure.message)

    def _fail_branch(self, token: Token, error: str) -> None:
        """The branch fails of the innermost fork around a token that tolerates it, or the run."""
        at = self._tolerant(token)
        if at.fork is None:
            self.error = error
            return
        before, context = self._copied(), self.context
        for other in self.moving(at.fork):
            if self.branch_of(other, at.fork) == at.branch_index:
                self.status[other.id] = CANCELLED
        self.over.update(
            name
            for name in self.forks
            if self.branch_of(self.forks[name].origin, at.fork) == at.branch_index
        )
        self.failed[at.fork] = {**self.failed.get(at.fork, {}), at.branch_index: error}
        self.settle([at.fork])
        if self.error is not None and not self.stays:
            self._take_back(before, context)

    def _tolerant(self, token: Token) -> Token:
        """The token, or that before a fork around it, whose fork tolerates failures."""
        at = token
        while at.fork is not None:
            fork = self.forks[at.fork]
            joins = (way.synchronization for way in self.ways_to_joins(fork.group))
            if any(join and join.on_branch_failure == "tolerate" for join in joins):
                break
            at = fork.origin
        return at

    def _fail_fork(self, fork: str, error: str) -> None:
        """No meeting point of a fork can go on."""
        if fork not in self.over:
            self._fail_branch(self.forks[fork].origin, error)

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

    def apply(
        self, decisions: tuple[Decision, ...], token: Token | None, error: Failure | None = None
    ) -> list[Token]:
        """Gives the tokens that were made, which an error may have led to."""
        self.limited = not self._fits(
            [decision.params for decision in decisions if isinstance(decision, CreateToken)]
        )
        if self.limited:
            return []
        created = [
            self.create(decision.params, token)
            for decision in decisions
            if isinstance(decision, CreateToken)
        ]
        self.errors |= {new.id: error for new in created if error}
        for decision in decisions:
            if not isinstance(decision, CreateToken):
                self.apply_one(decision, token, error)
        met = [join for new in created if self.error is None for join in self.arrive(new)]
        for join in met:
            if self.error is None:
                join()
        return created

    def apply_one(
        self, decision: Decision, token: Token | None, error: Failure | None = None
    ) -> None:
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
                assert token is not None
                self._activate_without_branches(decision, token, error)
            case CompleteWorkflow(output=output):
                self.output = dict(output)
            case FailWorkflow(error=message):
                self.error = message
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
        elif origin is not None and origin.fork not in {None, params.fork}:
            self._leave(token, origin)
        if params.item_var is not None and params.fork is not None:
            self.items[params.fork, params.branch_index] = (params.item_var, params.item)
        self.tokens[token.id], self.status[token.id] = token, READY
        self.came_by[token.id] = params.transition_ref or ""
        return token

    def _leave(self, token: Token, origin: Token) -> None:
        """A token leaves nested forks, if it does not begin one."""
        at, path = origin, []
        while at.fork is not None and at.fork != token.fork:
            path.insert(0, (int(self.forks[at.fork].origin.id), at.branch_index))
            at = self.forks[at.fork].origin
        if at.fork == token.fork and path:
            output = self.outputs.get((origin.fork or "", origin.branch_index), {})
            self.inner[token.id] = (tuple(path), output)

    # -- meeting points

    def ways_to_joins(self, group: str | None) -> list[Transition]:
        return [
            way
            for way in self.graph.definition.transitions
            if way.synchronization is not None and way.synchronization.sibling_group == group
        ]

    def arrive(self, token: Token) -> list[Callable[[], None]]:
        """Gives what a meeting point does that goes on with this arrival."""
        if self.holds(token):
            return [lambda: self.join_ways(token)]
        ways = self.graph.definition.transitions
        joined = {way.ref: way.synchronization for way in ways}.get(self.came_by[token.id])
        if joined is None or token.fork is None or token.sibling_group != joined.sibling_group:
            return []
        self.status[token.id] = WAITING
        self.came.append(token.id)
        fork, node_ref = token.fork, token.node_ref
        if self.satisfied(fork, node_ref):
            return [lambda: None if fork in self.over else self.activate(fork, node_ref)]
        nodes = [way.to_node_ref for way in self.ways_to_joins(token.sibling_group)]
        if not any(self.possible(token.fork, node_ref) for node_ref in nodes):
            error = self.unreachable(token.fork, token.node_ref)
            return [lambda: self._fail_fork(fork, error)]
        return []

    def ways_to(self, node_ref: str) -> list[str]:
        """The ways to a node that waits for one token on each."""
        nodes = {node.ref: node.join for node in self.graph.definition.nodes}
        ways = self.graph.definition.transitions
        into = [way.ref for way in ways if way.to_node_ref == node_ref]
        return into if nodes[node_ref] == "all" and len(into) > 1 else []

    def place(self, token: Token) -> tuple[str | None, int, str, int]:
        times = token.iteration_counts[self.came_by[token.id]]
        return (token.fork, token.branch_index, token.node_ref, times)

    def holds(self, token: Token) -> bool:
        """Whether a token waits for tokens on other ways to its node."""
        if not self.came_by[token.id] or not self.ways_to(token.node_ref):
            return False
        self.status[token.id] = HELD
        self.held[self.place(token)] = (*self.held.get(self.place(token), ()), token.id)
        return True

    def join_ways(self, token: Token) -> None:
        if self.status[token.id] != HELD:
            return
        place = self.place(token)
        here = self.held[place]
        first = {self.came_by[item]: item for item in reversed(here)}
        if set(first) != set(self.ways_to(token.node_ref)):
            return
        before, context = self._copied(), self.context
        self.held[place] = tuple(item for item in here if item not in first.values())
        joined = [self.tokens[item] for item in sorted(first.values(), key=int)]
        counts: dict[str, int] = {}
        for item in joined:
            self.status[item.id] = DONE
            for ref, times in item.iteration_counts.items():
                counts[ref] = max(times, counts.get(ref, 0))
        last = joined[-1]
        new = structs.replace(
            last, id=str(len(self.tokens)), parent_token_id=last.id, iteration_counts=counts
        )
        if not self._fits([new]):
            self._take_back(before, context)
            return
        self.tokens[new.id], self.status[new.id] = new, READY
        self.came_by[new.id] = self.came_by[last.id]
        self._pass_on_error(joined, new)

    def _pass_on_error(self, joined: list[Token], new: Token) -> None:
        """A token that goes on for others has the error of the first that has one."""
        failed = [token.id for token in joined if token.id in self.errors]
        if failed:
            self.errors[new.id] = self.errors[failed[0]]

    def check_held(self, token: Token) -> None:
        """Those who wait for others must not be all that is left of a branch."""
        if self.error is not None:
            return
        scope = (token.fork, token.branch_index)
        here = [
            other
            for other in self.tokens.values()
            if (other.fork, other.branch_index) == scope and self.status[other.id] in (READY, HELD)
        ]
        held = [other for other in here if self.status[other.id] == HELD]
        nested = [
            name
            for name, fork in self.forks.items()
            if (fork.origin.fork, fork.origin.branch_index) == scope and name not in self.over
        ]
        if held and len(held) == len(here) and not nested:
            place = self.place(held[0])
            arrived = {self.came_by[other.id] for other in held if self.place(other) == place}
            missing = [ref for ref in self.ways_to(held[0].node_ref) if ref not in arrived]
            self._fail_branch(
                token,
                f"Node {held[0].node_ref!r} waits for a token by each of its transitions, and none "
                f"can arrive by {', '.join(missing)}",
            )

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

    def moving(self, fork: str) -> list[Token]:
        """Tokens of a fork that may still arrive; who waits at a nested one, may."""
        return [
            token
            for token in self.tokens.values()
            if self.branch_of(token, fork) is not None
            and (
                self.status[token.id] in (READY, HELD)
                or (self.status[token.id] == WAITING and token.fork != fork)
            )
        ]

    def strategy(self, fork: str, node_ref: str) -> str:
        ways = self.ways_to_joins(self.forks[fork].group)
        (found,) = {
            way.synchronization.strategy
            for way in ways
            if way.synchronization and way.to_node_ref == node_ref
        }
        return found

    def satisfied(self, fork: str, node_ref: str) -> bool:
        here = {token.branch_index for token in self.waiting(fork, node_ref)}
        strategy = self.strategy(fork, node_ref)
        if strategy == "all":
            return bool(here) and not self.moving(fork)
        return len(here) >= (quorum(strategy) or 1)

    def can_be_there(self, fork: str, node_ref: str) -> int:
        """So many branches are there, or may come."""
        here = {token.branch_index for token in self.waiting(fork, node_ref)}
        return len(here | {self.branch_of(token, fork) for token in self.moving(fork)})

    def possible(self, fork: str, node_ref: str) -> bool:
        needed = quorum(self.strategy(fork, node_ref)) or 1
        return self.can_be_there(fork, node_ref) >= needed

    def unreachable(self, fork: str, node_ref: str) -> str:
        here = {token.branch_index for token in self.waiting(fork, node_ref)}
        failed = len(self.failed.get(fork, {}))
        return (
            f"Synchronization of sibling group {self.forks[fork].group!r} cannot be reached: "
            f"{self.strategy(fork, node_ref)} of {self.forks[fork].total} branches, {len(here)} "
            f"arrived{f', {failed} failed' if failed else ''} and at most "
            f"{self.can_be_there(fork, node_ref)} can"
        )

    def settle(self, names: list[str | None]) -> None:
        """Branches that begin or end may settle meeting points, and those the forks around."""
        for first in dict.fromkeys(names):
            name = first
            while name is not None and name not in self.over and self.error is None:
                if self._settled(name) or self.moving(name) or self._waits(name):
                    break
                self.over.add(name)
                self.check_held(self.forks[name].origin)
                name = self.forks[name].origin.fork

    def _waits(self, fork: str) -> list[Token]:
        return [
            token
            for token in self.tokens.values()
            if self.status[token.id] == WAITING and token.fork == fork
        ]

    def _settled(self, fork: str) -> bool:
        """Whether a meeting point goes on, or none can and the run fails."""
        nodes = [way.to_node_ref for way in self.ways_to_joins(self.forks[fork].group)]
        here = [node_ref for node_ref in self.arrived_in_order(fork) if node_ref in nodes]
        for node_ref in here:
            if self.satisfied(fork, node_ref):
                self.activate(fork, node_ref)
                return True
        ordered = list(dict.fromkeys([*here, *nodes]))
        if any(self.possible(fork, node_ref) for node_ref in ordered):
            return False
        failed = self.failed.get(fork)
        if failed and not any(self.can_be_there(fork, node_ref) for node_ref in ordered):
            self._fail_branch(self.forks[fork].origin, next(iter(failed.values())))
            return True
        for node_ref in ordered:
            if quorum(self.strategy(fork, node_ref)):
                self._fail_branch(self.forks[fork].origin, self.unreachable(fork, node_ref))
                return True
        return False

    def arrived_in_order(self, fork: str) -> list[str]:
        """The meeting points where tokens wait, by the first that came."""
        arrived = sorted(self._waits(fork), key=lambda token: self.came.index(token.id))
        return list(dict.fromkeys(token.node_ref for token in arrived))

    def activate(self, name: str, node_ref: str) -> None:
        fork = self.forks[name]
        waiting = self.waiting(name, node_ref)
        arrivals = []
        for token in waiting:
            path, output = self.inner.get(
                token.id, ((), self.outputs.get((name, token.branch_index), {}))
            )
            arrivals.append(
                Arrival(
                    token_id=token.id,
                    branch_index=token.branch_index,
                    transition_ref=self.came_by[token.id],
                    taken=self._taken_since(token, fork.origin),
                    output=output,
                    inner=path,
                )
            )
        around = None
        if fork.origin.fork is not None:
            around = self.outputs.get((fork.origin.fork, fork.origin.branch_index), {})
        here = {token.id for token in waiting}
        decide = partial(
            decide_continuation,
            self.graph,
            self.graph.transition(self.came_by[waiting[0].id]),
            fork,
            arrivals,
            elsewhere=[token.id for token in self._waits(name) if token.id not in here],
            in_flight=[token.id for token in self.moving(name)],
            failed_branches=len(self.failed.get(name, {})),
            enclosing_output=around,
        )
        planned = decide()
        failed = next((item for item in planned.decisions if isinstance(item, FailWorkflow)), None)
        failure = None if failed is None else Failure(failed.name, failed.error)
        before = (self._copied(), self.context)
        if failure is not None and self._survives(failure, fork, node_ref):
            planned = decide(merges=False)
        if any(isinstance(item, FailWorkflow) for item in planned.decisions):
            self.error, self.stays = failure and failure.message, True
            return
        made = self._continue(planned.decisions, fork.origin)
        if self.error is not None:
            self._take_back(*before)
            return
        self.unmerged += [(new.id, failure, *before) for new in made if failure]
        by_branch = sorted(waiting, key=lambda token: (token.branch_index, int(token.id)))
        self._pass_on_error(by_branch, made[0])
        self.activated[name, node_ref] += 1
        self.merged[name, node_ref] = {token.branch_index for token in waiting}
        self.over.update(
            other
            for other in self.forks
            if other == name or self.branch_of(self.forks[other].origin, name) is not None
        )

    def _survives(self, failure: Failure, fork: Fork, node_ref: str) -> bool:
        """Whether an error transition leads on from a meeting point, or a fork around tolerates."""
        there = structs.replace(fork.origin, node_ref=node_ref)
        scope = self.scope(there, failure)
        forks = self.forks.__getitem__
        routed = decide_routing(self.graph, there, scope, forks, failed_node=True).decisions
        return bool(routed) or self._tolerant(fork.origin).fork is not None

    def _taken_since(self, token: Token, origin: Token) -> dict[str, int]:
        before = origin.iteration_counts
        times = {ref: n - before.get(ref, 0) for ref, n in token.iteration_counts.items()}
        return {ref: n for ref, n in times.items() if n}

    def _activate_without_branches(
        self, found: ActivateFanIn, token: Token, error: Failure | None
    ) -> None:
        assert found.fork is not None
        fork = Fork(id=found.fork, group=None, total=0, origin=token)
        self.activated[found.fork, found.node_ref] += 1
        around = None
        if token.fork is not None:
            around = self.outputs.get((token.fork, token.branch_index), {})
        planned = decide_continuation(
            self.graph,
            self.graph.transition(found.transition_ref),
            fork,
            [],
            enclosing_output=around,
            came_by=found.came_by,
        )
        made = self._continue(planned.decisions, token)
        self.limited = self.error is not None
        self.errors |= {new.id: error for new in made if error}

    def _continue(self, decisions: tuple[Decision, ...], origin: Token) -> list[Token]:
        """Gives the tokens that were made."""
        result = []
        for decision in decisions:
            if isinstance(decision, CreateToken):
                if self._fits([decision.params]):
                    result.append(self.create(decision.params, None))
            else:
                self.apply_one(decision, origin)
        return result
