"""Inspect a graph run: its tokens, and what would follow if one of them moved.

Simulations use the decider of live runs in a draft (see `draft`): the run is unchanged, and the
result is what its owner would decide. The time is that of the state.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from headwater.processors.graph.advancing import act_and_advance, complete, route, traverse
from headwater.processors.graph.definition import Transition
from headwater.processors.graph.draft import Draft
from headwater.processors.graph.past import Past, moment_or_none
from headwater.processors.graph.planning import (
    ROOT,
    ActivateFanIn,
    CreateToken,
    Decision,
    TokenStatus,
    Trace,
    as_dict,
)
from headwater.processors.graph.state import GraphRun, LiveToken, meeting_key, taken_of
from headwater.processors.runs.decisions import Rejection
from headwater.schemas import history
from headwater.schemas.answers import Failure
from headwater.schemas.failures import (
    INSTANCE_TERMINAL,
    NODE_NOT_FOUND,
    TOKEN_NOT_FOUND,
    TRANSITION_NOT_FOUND,
)
from headwater.schemas.graph_answers import (
    BranchCounts,
    Fired,
    SimulatedRouting,
    SimulatedSynchronization,
    TokensPage,
    WaitsFor,
)
from headwater.schemas.graph_answers import LiveToken as ShownToken
from headwater.schemas.history import Json, TokenCompleted, TokensCreated

#: Decisions, or traces, in one response: a fan-out has one per branch.
SHOWN_MAX: Final = 1_000
_ROUTING: Final = "decision.routing.start"
_JOINING: Final = "decision.sync."
_WAITING: Final = TokenStatus.WAITING_FOR_SIBLINGS


# -- tokens


def introspect_tokens(past: Past, *, after: int = -1, limit: int | None = None) -> TokensPage:
    """Return the live tokens, ordered by number: at most `limit` after the number `after`."""
    run = past.run
    live = {} if run.ended else run.tokens
    numbers = sorted(number for number in live if number > after)
    shown = numbers[:limit]
    return TokensPage(
        **past.as_of(),
        tokens=[shown_token(run, live[number]) for number in shown],
        total=len(live),
        cursor=str(shown[-1]) if len(shown) < len(numbers) else None,
    )


def shown_token(run: GraphRun, token: LiveToken) -> ShownToken:
    """Return the public view of a token."""
    return ShownToken(
        id=str(token.number),
        node_ref=token.node,
        status=token.status,
        path_id=token.path,
        parent_token_id=None if token.parent is None else str(token.parent),
        transition_ref=token.transition,
        fork=token.fork,
        sibling_group=token.group,
        branch_index=token.branch,
        branch_total=token.total,
        iteration_counts=dict(taken_of(run, token)),
        attempts=token.attempts,
        waits_for=waits_for(run, token),
    )


def waits_for(run: GraphRun, token: LiveToken) -> WaitsFor:  # noqa: PLR0911, one per reason
    """Return what a token waits for."""
    if token.number in run.held:
        return WaitsFor(what="resume")
    match token.status:
        case TokenStatus.PENDING:
            reason = "dispatch" if token.at_ms is None else "retry"
            return WaitsFor(what=reason, until=moment_or_none(token.at_ms))
        case TokenStatus.WAITING_FOR_SIBLINGS:
            meeting = run.meetings.get(meeting_key(token.fork or "", token.node))
            until_ms = None if meeting is None else meeting.until_ms
            return WaitsFor(what="siblings", until=moment_or_none(until_ms))
        case TokenStatus.WAITING_FOR_SUBWORKFLOW:
            child = token.child
            return WaitsFor(
                what="subworkflow",
                until=moment_or_none(token.at_ms),
                child_workflow_name=None if child is None else child.workflow,
                child_instance_id=None if child is None else child.instance_id,
            )
        case TokenStatus.WAITING_FOR_TIME:
            return WaitsFor(what="time", until=moment_or_none(token.at_ms))
        case TokenStatus.WAITING_FOR_EVENT:
            until, event_type = moment_or_none(token.at_ms), run.waits.get(token.number)
            return WaitsFor(what="event", until=until, event_type=event_type)
        case _ if token.lease is not None:
            until = moment_or_none(token.lease.until_ms)
            return WaitsFor(what="task", until=until, worker=token.lease.worker)
        case _:
            return WaitsFor(what="task" if token.job is None else "worker")


def shown_failure(failure: history.Failure | None) -> Failure | None:
    """Return the public view of an error, if there is one."""
    return None if failure is None else Failure(name=failure.name, message=failure.message)


# -- simulations


def simulate_routing(
    past: Past, *, token: str | None = None, node: str | None = None, output: Json | None = None
) -> SimulatedRouting | Rejection:
    """Simulate what follows if a token completes now.

    Args:
        past: The run.
        token: Number of the token.
        node: Node of the token, instead of its number: the lowest token there that does not wait
            for siblings. If there is none, a token outside of all forks is assumed.
        output: Result of the token. Without it nothing is mapped, and conditions see the current
            context.
    """
    selected = _reject_ended(past) or _token_and_draft(past, token, node)
    if isinstance(selected, Rejection):
        return selected
    draft, live_token = selected

    def complete_token(draft: Draft) -> None:
        if output is None:
            draft.emit(TokenCompleted(live_token.number, live_token.attempts + 1, "null"))
            route(draft, live_token, draft.planned(live_token), draft.scope(live_token))
        else:
            complete(draft, live_token, output)

    shown = shown_token(draft.run, live_token)
    simulated = _simulate(draft, complete_token)
    return SimulatedRouting(**past.as_of(), token=shown, fires=_fires(draft), **simulated)


def simulate_synchronization(
    past: Past, *, token: str, transition: str
) -> SimulatedSynchronization | Rejection:
    """Simulate the decision at a join if a token arrived there now by a transition.

    The conditions of the transition are not evaluated; `simulate_routing` does that. A token that
    waits there already is counted once.
    """
    selected = _reject_ended(past) or _token_and_draft(past, token, None, may_wait=True)
    if isinstance(selected, Rejection):
        return selected
    draft, live_token = selected
    join_transition = _transition_to_join(draft, live_token, transition)
    if isinstance(join_transition, Rejection):
        return join_transition
    synchronization = join_transition.synchronization
    shown = shown_token(draft.run, live_token)
    simulated = _simulate(draft, lambda draft: traverse(draft, live_token, join_transition))
    decision, counts = _join_decision(draft)
    return SimulatedSynchronization(
        **past.as_of(),
        token=shown,
        transition_ref=join_transition.ref,
        strategy=synchronization.strategy if synchronization else "",
        decision=decision,
        counts=counts,
        **simulated,
    )


def _reject_ended(past: Past) -> Rejection | None:
    """Reject a simulation of a run that has ended."""
    run = past.run
    if not run.ended:
        return None
    return Rejection(
        INSTANCE_TERMINAL,
        f"expected a live run, found it {run.status} at sequence {past.sequence}; select an "
        "earlier sequence with `at`",
    )


def _token_and_draft(
    past: Past, token: str | None, node: str | None, *, may_wait: bool = False
) -> tuple[Draft, LiveToken] | Rejection:
    """Return the token of a simulation, and a draft for it."""
    run, graph = past.run, past.graph
    if graph is None:
        message = f"expected a token, found none: the run has just begun at {past.sequence}"
        return Rejection(TOKEN_NOT_FOUND, message)
    draft = Draft(run, graph, past.at_ms, past.evaluator)
    if token is not None:
        live_token = run.token_of(token)
        if live_token is None:
            return _token_not_found(past, token)
        if live_token.status is _WAITING and not may_wait:
            return Rejection(
                TOKEN_NOT_FOUND,
                f"token: expected one that has something to do, found {token} to wait for its "
                f"siblings at {live_token.node!r}; simulate its synchronization instead",
            )
        return draft, live_token
    refs = [declared.ref for declared in graph.definition.nodes]
    if node not in refs:
        known = ", ".join(refs[:20])
        return Rejection(NODE_NOT_FOUND, f"node: expected one of {known}, found {node!r:.80}")
    at_node = (live for live in run.tokens.values() if live.node == node)
    movable = (live.number for live in at_node if live.status is not _WAITING)
    number = min(movable, default=None)
    return _with_new_token(draft, node or "") if number is None else (draft, run.tokens[number])


def _token_not_found(past: Past, token: str) -> Rejection:
    ended = past.tokens.get(int(token)) if token.isdecimal() and token.isascii() else None
    why = f"it is {ended.status}" if ended else "there is none"
    live = ", ".join(map(str, islice(past.run.tokens, 20))) or "none"
    return Rejection(
        TOKEN_NOT_FOUND,
        f"token: expected one that lives at sequence {past.sequence} ({live}), found {token!r:.40}:"
        f" {why}",
    )


def _with_new_token(draft: Draft, node: str) -> tuple[Draft, LiveToken]:
    """Create a token at a node. Return a draft that begins with the token."""
    run, graph = draft.run, draft.graph
    draft.emit(TokensCreated(run.created, 1, node, None, None, ROOT, None, None, 0, 1, ()))
    draft_with_token = Draft(draft.run, graph, draft.now_ms, draft.evaluator)
    return draft_with_token, draft.run.tokens[run.created - 1]


def _transition_to_join(draft: Draft, token: LiveToken, ref: str) -> Transition | Rejection:
    """Return the transition by which a token arrives, or has arrived, at a join."""
    to_joins = [way for way in draft.graph.definition.transitions if way.synchronization]
    if token.status is _WAITING:
        usable = [way for way in to_joins if way.ref == token.transition]
    else:
        usable = [way for way in to_joins if way.from_node_ref == token.node]
    for transition in usable:
        if transition.ref == ref:
            return transition
    known = ", ".join(transition.ref for transition in usable) or "none"
    return Rejection(
        TRANSITION_NOT_FOUND,
        f"transition: expected one with a synchronization by which token {token.number} at "
        f"{token.node!r} can arrive ({known}), found {ref!r:.80}",
    )


def _simulate(draft: Draft, action: Callable[[Draft], None]) -> dict[str, Any]:
    """Decide in a draft. Return the fields of `Simulated`."""
    act_and_advance(draft, action)
    return {
        **shown_plans(draft),
        "would_be": draft.run.status,
        "error": shown_failure(draft.run.failure),
    }


def shown_plans(draft: Draft) -> dict[str, Any]:
    """Return the decisions and traces of a draft, up to `SHOWN_MAX`."""
    decisions = [decision for _, planned in draft.plans for decision in planned.decisions]
    traces = [trace for _, planned in draft.plans for trace in planned.events]
    return {
        "decisions": _shown(decisions),
        "trace": _shown(traces),
        "decisions_left_out": max(0, len(decisions) - SHOWN_MAX),
        "trace_left_out": max(0, len(traces) - SHOWN_MAX),
    }


def _shown(items: Iterable[Decision | Trace]) -> list[dict[str, Any]]:
    return [as_dict(item) for item in islice(items, SHOWN_MAX)]


def _fires(draft: Draft) -> list[Fired]:
    """Return the transitions that the first routing of a draft takes."""
    tokens: dict[str, int] = {}
    for _, planned in draft.plans:
        if planned.events and planned.events[0].type == _ROUTING:
            for decision in planned.decisions:
                match decision:
                    case CreateToken(params=params):
                        ref = params.transition_ref or ""
                        tokens[ref] = tokens.get(ref, 0) + 1
                    case ActivateFanIn(came_by=refs):
                        tokens |= dict.fromkeys(refs, 0)
                    case _:
                        pass
            break
    graph = draft.graph
    return [
        Fired(transition_ref=ref, to_node_ref=graph.transition(ref).to_node_ref, tokens=count)
        for ref, count in tokens.items()
    ]


def _join_decision(draft: Draft) -> tuple[str, BranchCounts | None]:
    """Return the decision about a draft's first arrival, and its branch counts."""
    for _, planned in draft.plans:
        trace = planned.events[0] if planned.events else None
        if trace is not None and trace.type.startswith(_JOINING) and planned.decisions:
            payload, decision = trace.payload, as_dict(planned.decisions[0])
            names = BranchCounts.__struct_fields__
            counts = {name: payload[name] for name in names if name in payload}
            return decision["type"], BranchCounts(**counts) if counts else None
    return "MARK_FOR_DISPATCH", None
