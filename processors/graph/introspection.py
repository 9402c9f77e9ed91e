"""Looking into a run of a graph: its tokens, and what would follow if one of them went on.

What would follow is decided by the decider of live runs, in a draft (see `draft`): the run is not
touched, and what is told is what its owner would decide. The time is that of the state.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from headwater.processors.graph.advancing import come_by, complete, route
from headwater.processors.graph.decide import follow
from headwater.processors.graph.decisions import (
    ActivateFanIn,
    CreateToken,
    Decision,
    Trace,
    as_dict,
)
from headwater.processors.graph.definition import Transition
from headwater.processors.graph.draft import Draft
from headwater.processors.graph.past import Past, moment_or_none
from headwater.processors.graph.state import GraphRun, LiveToken, meeting_key
from headwater.processors.graph.tokens import ROOT, TokenStatus
from headwater.processors.runs.decisions import Rejection
from headwater.schemas import history
from headwater.schemas.answers import Failure
from headwater.schemas.failures import (
    INSTANCE_TERMINAL,
    NODE_NOT_FOUND,
    TOKEN_NOT_FOUND,
    TRANSITION_NOT_FOUND,
)
from headwater.schemas.history import Json, TokenCompleted, TokensCreated
from headwater.schemas.introspection import (
    BranchCounts,
    Fired,
    SimulatedRouting,
    SimulatedSynchronization,
    TokensPage,
    WaitsFor,
)
from headwater.schemas.introspection import LiveToken as ShownToken

#: Decisions, or traces, of one answer: a fan-out has as many as branches.
SHOWN_MAX: Final = 1_000
_ROUTING: Final = "decision.routing.start"
_JOINING: Final = "decision.sync."
_WAITS: Final = TokenStatus.WAITING_FOR_SIBLINGS


# -- tokens


def introspect_tokens(past: Past, *, after: int = -1, limit: int | None = None) -> TokensPage:
    """The tokens that live, by their numbers: so many after one of them."""
    run = past.run
    live = {} if run.ended else run.tokens
    left = sorted(number for number in live if number > after)
    shown = left[:limit]
    return TokensPage(
        **past.as_of(),
        tokens=[shown_token(run, live[number]) for number in shown],
        total=len(live),
        cursor=str(shown[-1]) if len(shown) < len(left) else None,
    )


def shown_token(run: GraphRun, token: LiveToken) -> ShownToken:
    """A token for people."""
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
        iteration_counts=token.taken,
        attempts=token.attempts,
        waits_for=waits_for(run, token),
    )


def waits_for(run: GraphRun, token: LiveToken) -> WaitsFor:
    """What a token waits for."""
    match token.status:
        case TokenStatus.PENDING:
            what = "dispatch" if token.at_ms is None else "retry"
            return WaitsFor(what=what, until=moment_or_none(token.at_ms))
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
        case _ if token.lease is not None:
            until = moment_or_none(token.lease.until_ms)
            return WaitsFor(what="task", until=until, worker=token.lease.worker)
        case _:
            return WaitsFor(what="task" if token.job is None else "worker")


def shown_failure(failure: history.Failure | None) -> Failure | None:
    """An error for people, if there is one."""
    return None if failure is None else Failure(name=failure.name, message=failure.message)


# -- what would follow


def simulate_routing(
    past: Past, *, token: str | None = None, node: str | None = None, output: Json | None = None
) -> SimulatedRouting | Rejection:
    """What would follow if a token completed, now and with this output.

    Shape:  of a node, its token with the lowest number that does not wait for siblings; where it
            has none, one that came there outside of all forks. Without an output nothing is mapped:
            conditions see the context as it is.
    """
    found = _over(past) or _chosen(past, token, node)
    if isinstance(found, Rejection):
        return found
    draft, chosen = found

    def completing(draft: Draft) -> None:
        if output is None:
            draft.emit(TokenCompleted(chosen.number, chosen.attempts + 1, "null"))
            route(draft, chosen)
        else:
            complete(draft, chosen, output)

    about = shown_token(draft.run, chosen)
    told = _told(draft, completing)
    return SimulatedRouting(**past.as_of(), token=about, fires=_fires(draft), **told)


def simulate_synchronization(
    past: Past, *, token: str, transition: str
) -> SimulatedSynchronization | Rejection:
    """What would be decided if a token came by a transition, now, to where its branch meets others.

    Shape:  whether its conditions let it come says `simulate_routing`. One that waits there
            already is counted once.
    """
    found = _over(past) or _chosen(past, token, None, may_wait=True)
    if isinstance(found, Rejection):
        return found
    draft, chosen = found
    way = _way(draft, chosen, transition)
    if isinstance(way, Rejection):
        return way
    joined = way.synchronization
    about = shown_token(draft.run, chosen)
    told = _told(draft, lambda draft: come_by(draft, chosen, way))
    decision, counts = _joining(draft)
    return SimulatedSynchronization(
        **past.as_of(),
        token=about,
        transition_ref=way.ref,
        strategy=joined.strategy if joined else "",
        decision=decision,
        counts=counts,
        **told,
    )


def _over(past: Past) -> Rejection | None:
    """Refuses to look for what would follow in a run that has ended."""
    run = past.run
    if not run.ended:
        return None
    return Rejection(
        INSTANCE_TERMINAL,
        f"expected a run that goes on, found it {run.status} at sequence {past.sequence}; look at "
        "an earlier one, with `at`",
    )


def _chosen(
    past: Past, token: str | None, node: str | None, *, may_wait: bool = False
) -> tuple[Draft, LiveToken] | Rejection:
    """The token that a simulation is about, in a draft of its own."""
    run, graph = past.run, past.graph
    if graph is None:
        message = f"expected a token, found none: the run has just begun at {past.sequence}"
        return Rejection(TOKEN_NOT_FOUND, message)
    draft = Draft(run, graph, past.at_ms, past.evaluator)
    if token is not None:
        found = run.token_of(token)
        if found is None:
            return _no_token(past, token)
        if found.status is _WAITS and not may_wait:
            return Rejection(
                TOKEN_NOT_FOUND,
                f"token: expected one that has something to do, found {token} to wait for its "
                f"siblings at {found.node!r}; ask for its synchronization instead",
            )
        return draft, found
    if all(each.ref != node for each in graph.definition.nodes):
        known = ", ".join(each.ref for each in graph.definition.nodes[:20])
        return Rejection(NODE_NOT_FOUND, f"node: expected one of {known}, found {node!r:.80}")
    there = (each for each in run.tokens.values() if each.node == node)
    able = (each.number for each in there if each.status is not _WAITS)
    number = min(able, default=None)
    return _made_up(draft, node or "") if number is None else (draft, run.tokens[number])


def _no_token(past: Past, token: str) -> Rejection:
    ended = past.tokens.get(int(token)) if token.isdecimal() and token.isascii() else None
    why = f"it is {ended.status}" if ended else "there is none"
    live = ", ".join(map(str, islice(past.run.tokens, 20))) or "none"
    return Rejection(
        TOKEN_NOT_FOUND,
        f"token: expected one that lives at sequence {past.sequence} ({live}), found {token!r:.40}:"
        f" {why}",
    )


def _made_up(draft: Draft, node: str) -> tuple[Draft, LiveToken]:
    """A token at a node, and a draft of a run that has it: what is taken back is not the token."""
    run, graph = draft.run, draft.graph
    draft.emit(TokensCreated(run.created, 1, node, None, None, ROOT, None, None, 0, 1, ()))
    again = Draft(draft.run, graph, draft.now_ms, draft.evaluator)
    return again, draft.run.tokens[run.created - 1]


def _way(draft: Draft, token: LiveToken, ref: str) -> Transition | Rejection:
    """The transition by which a token comes, or has come, to a meeting point."""
    ways = [each for each in draft.graph.definition.transitions if each.synchronization]
    if token.status is _WAITS:
        able = [each for each in ways if each.ref == token.transition]
    else:
        able = [each for each in ways if each.from_node_ref == token.node]
    for each in able:
        if each.ref == ref:
            return each
    known = ", ".join(each.ref for each in able) or "none"
    return Rejection(
        TRANSITION_NOT_FOUND,
        f"transition: expected one with a synchronization by which token {token.number} at "
        f"{token.node!r} can come ({known}), found {ref!r:.80}",
    )


def _told(draft: Draft, what: Callable[[Draft], None]) -> dict[str, Any]:
    """Decides in a draft, and tells what came of it: the fields of `Simulated`."""
    follow(draft, what)
    return {
        **shown_plans(draft),
        "would_be": draft.run.status,
        "error": shown_failure(draft.run.failure),
    }


def shown_plans(draft: Draft) -> dict[str, Any]:
    """The decisions and traces of a draft, as far as they are shown."""
    decisions = [each for _, planned in draft.plans for each in planned.decisions]
    traces = [each for _, planned in draft.plans for each in planned.events]
    return {
        "decisions": _shown(decisions),
        "trace": _shown(traces),
        "decisions_left_out": max(0, len(decisions) - SHOWN_MAX),
        "trace_left_out": max(0, len(traces) - SHOWN_MAX),
    }


def _shown(found: Iterable[Decision | Trace]) -> list[dict[str, Any]]:
    return [as_dict(each) for each in islice(found, SHOWN_MAX)]


def _fires(draft: Draft) -> list[Fired]:
    """The transitions that the first routing of a draft takes."""
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


def _joining(draft: Draft) -> tuple[str, BranchCounts | None]:
    """What the planner of a draft's first arrival decided, and over which counts."""
    for _, planned in draft.plans:
        trace = planned.events[0] if planned.events else None
        if trace is not None and trace.type.startswith(_JOINING) and planned.decisions:
            payload, decided = trace.payload, as_dict(planned.decisions[0])
            names = BranchCounts.__struct_fields__
            counted = {name: payload[name] for name in names if name in payload}
            return decided["type"], BranchCounts(**counted) if counted else None
    return "MARK_FOR_DISPATCH", None
