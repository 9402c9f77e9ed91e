"""Decide where a run begins, and where a completed token continues.

The transitions out of its node are tried in tiers, lowest priority number first. The first tier
with a matching transition is taken, and all its matches fire. A transition that has reached its
maximum iterations does not match, whatever its condition.

A transition with a sibling group, a `foreach` or a `spawnCount` above 1 begins a fork. Transitions
of one tier with the same group belong to one fork: their branches are numbered consecutively.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.context import Scope
from headwater.processors.graph.definition import ON_ERROR, ON_SUCCESS, Transition
from headwater.processors.graph.graph import Graph, Route, Tiers
from headwater.processors.graph.joins import fan_in_path
from headwater.processors.graph.planning import (
    ROOT,
    ActivateFanIn,
    CreateToken,
    Decision,
    ForkOf,
    InitializeWorkflow,
    Planned,
    SetContext,
    Taken,
    Token,
    TokenParams,
    Trace,
    branch_path,
    enclosing,
    failed,
)
from headwater.processors.graph.validation import BRANCHES_MAX, FAN_IN
from headwater.schemas.failures import DEAD_END

#: Names of the ends of a node, by whether it has failed.
_END_OF: Final = (ON_SUCCESS, ON_ERROR)


def decide_start(graph: Graph, input: Any) -> Planned:  # noqa: A002, ANN401
    """Decide how a run begins: the defaults of its state, and its first token."""
    first = graph.definition.initial_node_ref
    params = TokenParams(node_ref=first, parent_token_id=None, path_id=ROOT)
    defaults = (
        SetContext(path=f"state.{name}", value=value) for name, value in graph.defaults.items()
    )
    return Planned(
        (InitializeWorkflow(input=input), *defaults, CreateToken(params=params)),
        (Trace("decision.lifecycle.start", node_ref=first),),
    )


# -- routing


class _ExpressionFailed(Exception):
    """An expression failed: the run cannot continue."""


class _Spawn(NamedTuple):
    """A match and the tokens it creates: one per item, or a fixed number."""

    route: Route
    branches: int
    items: list[Any] | None


def decide_routing(
    graph: Graph, token: Token, scope: Scope, fork_of: ForkOf, *, failed_node: bool = False
) -> Planned:
    """Decide which tokens follow one that has ended. Linear in transitions and branches.

    Args:
        graph: The compiled graph.
        token: The token.
        scope: Its scope; after a failure, with the error.
        fork_of: Looks up forks.
        failed_node: Whether its node has failed, so that its error transitions are tried.

    Returns:
        Creations, plus a join activation for an empty `foreach` with `onEmpty`; nothing where the
            token leads nowhere. A single failure if an expression fails.
    """
    tiers = graph.error_tiers(token.node_ref) if failed_node else graph.tiers(token.node_ref)
    events = [_trace("start", token, {"tiers": len(tiers), "on": _END_OF[failed_node]})]
    try:
        matches = _matches(tiers, token, scope, events)
        spawns = [_spawn(match, scope) for match in matches]
        decisions = tuple(_creations(graph, token, spawns, fork_of))
    except _ExpressionFailed as error:
        return failed(str(error), events=tuple(events))
    if not matches and tiers and not failed_node and graph.definition.on_dead_end == "fail":
        message = (
            f"expected a transition out of {token.node_ref!r} to match, as onDeadEnd is 'fail', "
            "found none"
        )
        return failed(message, DEAD_END, tuple(events))
    events.append(_trace("complete", token, {"decisions": len(decisions)}))
    return Planned(decisions, tuple(events))


def _matches(tiers: Tiers, token: Token, scope: Scope, events: list[Trace]) -> list[Route]:
    for tier in tiers:
        matches = [route for route in tier if _is_match(route, token, scope, events)]
        if matches:
            return matches
    return []


def _is_match(route: Route, token: Token, scope: Scope, events: list[Trace]) -> bool:
    transition = route.transition
    about = {"transition": transition.ref, "priority": transition.priority}
    loop = transition.loop_config
    if loop is not None:
        iterations = token.iteration_counts.get(transition.ref, 0)
        if iterations >= loop.max_iterations:
            payload = {**about, "iterations": iterations, "max_iterations": loop.max_iterations}
            events.append(_trace("loop_limit_reached", token, payload))
            return False
    matched = True if route.condition is None else scope.value(route.condition)
    if isinstance(matched, EvaluationProblem):
        raise _ExpressionFailed(
            f"{matched.message} (the condition of transition {transition.ref!r})"
        )
    payload = {**about, "condition": transition.condition, "matched": matched}
    events.append(_trace("evaluate_transition", token, payload))
    if matched:
        events.append(_trace("transition_matched", token, about))
    return bool(matched)


def _spawn(route: Route, scope: Scope) -> _Spawn:
    transition = route.transition
    if route.collection is None:
        return _Spawn(route, transition.spawn_count or 1, None)
    source = route.collection.source
    items = scope.value(route.collection)
    location = f"the foreach of transition {transition.ref!r}"
    if isinstance(items, EvaluationProblem):
        raise _ExpressionFailed(f"{items.message} ({location})")
    if not isinstance(items, list):
        kind = "null" if items is None else type(items).__name__
        raise _ExpressionFailed(
            f"the expression `{source}` has to give a list, found {kind} ({location})"
        )
    if len(items) > BRANCHES_MAX:
        raise _ExpressionFailed(
            f"the expression `{source}` has to give a list of at most {BRANCHES_MAX} items, "
            f"found {len(items)} ({location})"
        )
    return _Spawn(route, len(items), items)


def _fork_id(token: Token, route: Route) -> str | None:
    """Return the id of the fork that a match begins or joins, from the token and the group."""
    transition = route.transition
    if not transition.forks:
        return None
    if transition.sibling_group is not None:
        return f"{token.id}/{transition.sibling_group}"
    return f"{token.id}:{transition.ref}"


def _creations(
    graph: Graph, token: Token, spawns: list[_Spawn], fork_of: ForkOf
) -> Iterator[Decision]:
    totals: dict[str, int] = {}
    for spawn in spawns:
        fork = _fork_id(token, spawn.route)
        if fork is not None:
            totals[fork] = totals.get(fork, 0) + spawn.branches
    for fork, total in totals.items():
        if total > BRANCHES_MAX:
            raise _ExpressionFailed(
                f"expected at most {BRANCHES_MAX} branches of {fork!r}, found {total}"
            )
    next_branch = dict.fromkeys(totals, 0)
    for spawn in spawns:
        fork = _fork_id(token, spawn.route)
        if fork is None:
            yield CreateToken(params=onward(spawn.route.transition, token, fork_of))
            continue
        if totals[fork] == 0:
            # Once for the fork, not once per transition.
            if next_branch[fork] == 0:
                yield from _skip_empty_fork(graph, fork, spawns, token)
            next_branch[fork] += 1
            continue
        yield from _branches(spawn, token, fork, next_branch[fork], totals[fork])
        next_branch[fork] += spawn.branches


def _with_iteration(token: Token, ref: str) -> Mapping[str, int]:
    return Taken(({ref: 1},), token.iteration_counts)


def onward(transition: Transition, token: Token, fork_of: ForkOf) -> TokenParams:
    """Return the token of a transition that does not fork: it stays in its branch.

    At the join of an outer fork it represents the branch of that fork.
    """
    params = TokenParams(
        node_ref=transition.to_node_ref,
        parent_token_id=token.id,
        path_id=token.path_id,
        sibling_group=token.sibling_group,
        branch_index=token.branch_index,
        branch_total=token.branch_total,
        iteration_counts=_with_iteration(token, transition.ref),
        fork=token.fork,
        transition_ref=transition.ref,
    )
    joined = transition.synchronization
    if joined is None or joined.sibling_group == token.sibling_group:
        return params
    enclosing_fork = enclosing(token, joined.sibling_group, fork_of)
    if enclosing_fork is None or enclosing_fork[0].id == token.fork:
        return params
    fork, index = enclosing_fork
    return msgspec.structs.replace(
        params,
        path_id=branch_path(fork.origin, index),
        sibling_group=fork.group,
        branch_index=index,
        branch_total=fork.total,
        fork=fork.id,
    )


def _branches(
    spawn: _Spawn, token: Token, fork: str, first: int, total: int
) -> Iterator[CreateToken]:
    transition = spawn.route.transition
    counts = _with_iteration(token, transition.ref)
    item_var = transition.foreach.item_var if transition.foreach else None
    for offset in range(spawn.branches):
        index = first + offset
        yield CreateToken(
            params=TokenParams(
                node_ref=transition.to_node_ref,
                parent_token_id=token.id,
                path_id=branch_path(token, index),
                sibling_group=transition.sibling_group,
                branch_index=index,
                branch_total=total,
                iteration_counts=counts,
                fork=fork,
                transition_ref=transition.ref,
                item_var=item_var,
                item=None if spawn.items is None else spawn.items[offset],
            )
        )


def _skip_empty_fork(
    graph: Graph, fork: str, spawns: list[_Spawn], token: Token
) -> Iterator[ActivateFanIn]:
    """Activate the join of a fork without branches, if one of its transitions requests it."""
    transitions = [
        spawn.route.transition for spawn in spawns if _fork_id(token, spawn.route) == fork
    ]
    continues = any(
        transition.foreach is not None and transition.foreach.on_empty == FAN_IN
        for transition in transitions
    )
    group = transitions[0].sibling_group
    # Validation makes sure that the group has one join.
    joins = graph.joins_of(group) if continues and group else {}
    for meeting, *_ in joins.values():
        yield ActivateFanIn(
            node_ref=meeting.to_node_ref,
            fork=fork,
            fan_in_path=fan_in_path(meeting),
            transition_ref=meeting.ref,
            merged_token_ids=(),
            came_by=tuple(transition.ref for transition in transitions),
        )


def _trace(what: str, token: Token, payload: Mapping[str, Any]) -> Trace:
    return Trace(f"decision.routing.{what}", token.id, token.node_ref, payload)
