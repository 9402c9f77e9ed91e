"""Where a completed token goes on.

The transitions out of its node are tried in tiers, the lowest priority number first. The first tier
in which any transition matches is taken, and all its matches fire. A transition that has reached
its number of iterations does not match, whatever its condition says.

A transition with a sibling group, a `foreach` or a `spawnCount` above 1 begins a fork. Transitions
of one tier that name the same group are one fork: their branches are counted through.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.decisions import (
    ActivateFanIn,
    CreateToken,
    Decision,
    Planned,
    TokenParams,
    Trace,
    failed,
)
from headwater.processors.graph.definition import Transition
from headwater.processors.graph.graph import Graph, Route, Tiers
from headwater.processors.graph.scope import Scope
from headwater.processors.graph.synchronization import fan_in_path
from headwater.processors.graph.tokens import ForkOf, Token, branch_path, enclosing
from headwater.processors.graph.validation import BRANCHES_MAX, FAN_IN


class _Failed(Exception):
    """An expression without a value: the run cannot go on."""


class _Spawn(NamedTuple):
    """A match, and what it creates: a token for each item, or so many without."""

    route: Route
    branches: int
    items: list[Any] | None


def decide_routing(graph: Graph, token: Token, scope: Scope, fork_of: ForkOf) -> Planned:
    """Decides which tokens follow one that completed.

    Shape:  creates, and for an empty `foreach` that goes on through its meeting point an
            activation; nothing where the token leads nowhere. A single failure if an expression
            fails. Linear in transitions and branches.
    """
    tiers = graph.tiers(token.node_ref)
    events = [_trace("start", token, {"tiers": len(tiers)})]
    try:
        matches = _matches(tiers, token, scope, events)
        spawns = [_spawn(match, scope) for match in matches]
        decisions = tuple(_created(graph, token, spawns, fork_of))
    except _Failed as error:
        return failed(str(error), events=tuple(events))
    events.append(_trace("complete", token, {"decisions": len(decisions)}))
    return Planned(decisions, tuple(events))


def _matches(tiers: Tiers, token: Token, scope: Scope, events: list[Trace]) -> list[Route]:
    for tier in tiers:
        matches = [each for each in tier if _is_match(each, token, scope, events)]
        if matches:
            return matches
    return []


def _is_match(found: Route, token: Token, scope: Scope, events: list[Trace]) -> bool:
    transition = found.transition
    told = {"transition": transition.ref, "priority": transition.priority}
    loop = transition.loop_config
    taken = token.iteration_counts.get(transition.ref, 0)
    if loop is not None and taken >= loop.max_iterations:
        payload = {**told, "iterations": taken, "max_iterations": loop.max_iterations}
        events.append(_trace("loop_limit_reached", token, payload))
        return False
    matched = True if found.condition is None else scope.value(found.condition)
    if isinstance(matched, EvaluationProblem):
        raise _Failed(f"{matched.message} (the condition of transition {transition.ref!r})")
    payload = {**told, "condition": transition.condition, "matched": matched}
    events.append(_trace("evaluate_transition", token, payload))
    if matched:
        events.append(_trace("transition_matched", token, told))
    return bool(matched)


def _spawn(found: Route, scope: Scope) -> _Spawn:
    transition = found.transition
    if found.collection is None:
        return _Spawn(found, transition.spawn_count or 1, None)
    source = found.collection.source
    items = scope.value(found.collection)
    where = f"the foreach of transition {transition.ref!r}"
    if isinstance(items, EvaluationProblem):
        raise _Failed(f"{items.message} ({where})")
    if not isinstance(items, list):
        kind = "null" if items is None else type(items).__name__
        raise _Failed(f"the expression `{source}` has to give a list, found {kind} ({where})")
    if len(items) > BRANCHES_MAX:
        raise _Failed(
            f"the expression `{source}` has to give a list of at most {BRANCHES_MAX} items, "
            f"found {len(items)} ({where})"
        )
    return _Spawn(found, len(items), items)


def _fork_id(token: Token, found: Route) -> str | None:
    """The name of the fork that a match begins or belongs to: what began it, and its group."""
    transition = found.transition
    if not transition.forks:
        return None
    if transition.sibling_group is not None:
        return f"{token.id}/{transition.sibling_group}"
    return f"{token.id}:{transition.ref}"


def _created(
    graph: Graph, token: Token, spawns: list[_Spawn], fork_of: ForkOf
) -> Iterator[Decision]:
    totals: dict[str, int] = {}
    for each in spawns:
        fork = _fork_id(token, each.route)
        if fork is not None:
            totals[fork] = totals.get(fork, 0) + each.branches
    for fork, total in totals.items():
        if total > BRANCHES_MAX:
            raise _Failed(f"expected at most {BRANCHES_MAX} branches of {fork!r}, found {total}")
    begun = dict.fromkeys(totals, 0)
    for each in spawns:
        fork = _fork_id(token, each.route)
        if fork is None:
            yield CreateToken(params=onward(each.route.transition, token, fork_of))
            continue
        if totals[fork] == 0:
            # One for the fork, not for each of its transitions.
            if begun[fork] == 0:
                yield from _past_the_empty(graph, fork, spawns, token)
            begun[fork] += 1
            continue
        yield from _branches(each, token, fork, begun[fork], totals[fork])
        begun[fork] += each.branches


def _counted(token: Token, ref: str) -> dict[str, int]:
    return {**token.iteration_counts, ref: token.iteration_counts.get(ref, 0) + 1}


def onward(transition: Transition, token: Token, fork_of: ForkOf) -> TokenParams:
    """The one token of a transition that does not fork: it stays in its branch.

    At the meeting point of a fork further out it stands for the branch of that fork.
    """
    params = TokenParams(
        node_ref=transition.to_node_ref,
        parent_token_id=token.id,
        path_id=token.path_id,
        sibling_group=token.sibling_group,
        branch_index=token.branch_index,
        branch_total=token.branch_total,
        iteration_counts=_counted(token, transition.ref),
        fork=token.fork,
        transition_ref=transition.ref,
    )
    if transition.synchronization is None:
        return params
    around = enclosing(token, transition.synchronization.sibling_group, fork_of)
    if around is None or around[0].id == token.fork:
        return params
    fork, index = around
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
    counts = _counted(token, transition.ref)
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


def _past_the_empty(
    graph: Graph, fork: str, spawns: list[_Spawn], token: Token
) -> Iterator[ActivateFanIn]:
    """A fork without branches goes on at its meeting point, if one of its transitions says so."""
    mine = [each.route.transition for each in spawns if _fork_id(token, each.route) == fork]
    wanted = any(each.foreach is not None and each.foreach.on_empty == FAN_IN for each in mine)
    group = mine[0].sibling_group
    meeting = graph.meeting_of(group) if wanted and group else None
    if meeting is not None:
        yield ActivateFanIn(
            node_ref=meeting.to_node_ref,
            fork=fork,
            fan_in_path=fan_in_path(meeting),
            transition_ref=meeting.ref,
            merged_token_ids=(),
            came_by=tuple(each.ref for each in mine),
        )


def _trace(what: str, token: Token, payload: Mapping[str, Any]) -> Trace:
    return Trace(f"decision.routing.{what}", token.id, token.node_ref, payload)
