"""What follows from a token that has its result: others are created, wait, and meet."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from headwater.processors.graph.completion import decide_completion
from headwater.processors.graph.continuation import Arrival, decide_continuation, merges_of
from headwater.processors.graph.decisions import (
    ActivateFanIn,
    ApplyBranchOutput,
    CancelTokens,
    CompleteTokens,
    CompleteWorkflow,
    CreateToken,
    Decision,
    FailWorkflow,
    SetContext,
    TokenParams,
)
from headwater.processors.graph.definition import Transition
from headwater.processors.graph.dispatching import dispatch
from headwater.processors.graph.draft import Draft, planned, text_of
from headwater.processors.graph.ends import CannotGoOn, end, end_children, fail
from headwater.processors.graph.lifecycle import decide_start
from headwater.processors.graph.mappings import map_output
from headwater.processors.graph.routing import decide_routing, onward
from headwater.processors.graph.scope import Scope
from headwater.processors.graph.state import LiveToken, meeting_key
from headwater.processors.graph.synchronization import (
    LATE,
    decide_branch_end,
    decide_late_arrival,
    decide_synchronization,
    timeout_at_ms,
)
from headwater.processors.graph.tokens import Counts, Fork, Token, TokenStatus
from headwater.processors.runs.outbox import queue
from headwater.schemas.history import (
    BranchChanged,
    BranchMerge,
    ContextChange,
    ContextChanged,
    Failure,
    FanInActivated,
    ForkEnded,
    ForkOpened,
    Json,
    RunCompleted,
    RunSuspended,
    TimesTaken,
    TokenArrived,
    TokenCompleted,
    TokenFailed,
    TokensCancelled,
    TokensCreated,
)
from headwater.schemas.statuses import RunStatus

_WAITS: Final = TokenStatus.WAITING_FOR_SIBLINGS
#: Whom a token meets that passes a meeting point of others.
_NOBODY: Final = Counts(total=0, completed=0, terminal=0)


def begin(draft: Draft) -> None:
    """Creates the first token of a run."""
    started = draft.hear(decide_start(draft.graph, draft.run.input))
    _create(draft, _carry_out(draft, None, started))


def complete(draft: Draft, token: LiveToken, result: Json) -> None:
    """Takes the result of a token, and creates those that follow.

    A result that the run cannot go on with changes nothing but that the token has failed with it: a
    retry of the run does its task again.
    """
    attempt = token.attempts + 1
    try:
        draft.emit(TokenCompleted(token.number, attempt, result))
        outputs = map_output(draft.graph, planned(token), draft.scope(token), json.loads(result))
        _carry_out(draft, token, draft.hear(outputs))
        route(draft, token)
    except CannotGoOn as error:
        draft.take_back()
        draft.emit(TokenFailed(token.number, attempt, error.failure, result=result))
        fail(draft, error.failure, (token.number,))


def route(draft: Draft, token: LiveToken) -> None:
    """Creates what follows a token that has completed.

    Errors: CannotGoOn, if an expression fails, or branches can no longer meet.
    """
    routed = draft.hear(
        decide_routing(draft.graph, planned(token), draft.scope(token), draft.fork_of)
    )
    created = _create(draft, _carry_out(draft, token, routed), token)
    for decision in routed:
        if isinstance(decision, ActivateFanIn):
            _join_nobody(draft, token, decision)
    for each in created:
        _arrive(draft, each)
    settle(draft, token.fork)
    # A fork that has just begun may be over already: all its branches have met.
    for name in dict.fromkeys(each.fork for each in created):
        settle(draft, name)


def come_by(draft: Draft, token: LiveToken, transition: Transition) -> None:
    """Completes a token and has it come by a transition, whatever conditions say.

    Shape:  one that waits where the transition leads is counted there once more.
    """
    if token.status is _WAITS and token.fork is not None:
        counts = _counts(draft, token.fork, token.node)
        decided = decide_synchronization(transition, planned(token), counts)
        _meet(draft, token.fork, token.node, draft.hear(decided))
        return
    draft.emit(TokenCompleted(token.number, token.attempts + 1, "null"))
    created = _create(draft, [onward(transition, planned(token), draft.fork_of)], token)
    for each in created:
        _arrive(draft, each)
        settle(draft, each.fork)
    settle(draft, token.fork)


def go_on(draft: Draft) -> None:
    """Begins what may begin; without tokens the run ends, and it waits if no host does anything."""
    run = draft.run
    dispatch(draft)
    if run.in_flight > run.jobs:
        return
    if next(iter(run.tokens), None) is None:
        _finish(draft)
    elif run.status is RunStatus.ACTIVE:
        draft.emit(RunSuspended())


def _finish(draft: Draft) -> None:
    scope = Scope(draft.context(), evaluations=draft.evaluations)
    for decision in draft.hear(decide_completion(draft.graph, scope)):
        match decision:
            case FailWorkflow():
                fail(draft, Failure(decision.name, decision.error))
            case CompleteWorkflow():
                schema = draft.graph.output_schema
                wrong = schema and schema.problem(decision.output, "output", draft.evaluations)
                if wrong:
                    fail(draft, Failure("OutputInvalidError", wrong))
                end(draft, RunCompleted(text_of(decision.output)), "the run is complete")
            case _:
                pass


# -- decisions of planners, as events


def _carry_out(
    draft: Draft, token: LiveToken | None, decisions: Iterable[Decision]
) -> list[TokenParams]:
    """Does what planners decide, but for tokens that are to be: these it gives."""
    changes: list[ContextChange] = []
    created: list[TokenParams] = []
    for decision in decisions:
        match decision:
            case SetContext():
                changes.append(ContextChange(decision.path, text_of(decision.value)))
            case ApplyBranchOutput() if token is not None and token.fork is not None:
                before = draft.branch_of(token).output
                changed = {
                    name: value
                    for name, value in decision.output.items()
                    if name not in before or before[name] is not value
                }
                draft.emit(BranchChanged(token.fork, token.branch, text_of(changed)))
            case CreateToken():
                created.append(decision.params)
            case FailWorkflow():
                raise CannotGoOn(Failure(decision.name, decision.error))
            case _:
                pass
    if changes:
        draft.emit(ContextChanged(tuple(changes)))
        _check_context(draft)
    return created


def _check_context(draft: Draft) -> None:
    schema = draft.graph.context_schema
    wrong = schema and schema.problem(draft.run.shared, "state", draft.evaluations)
    if wrong:
        raise CannotGoOn(Failure("ContextInvalidError", wrong))


def _create(
    draft: Draft, wanted: Sequence[TokenParams], origin: LiveToken | None = None
) -> list[LiveToken]:
    """Creates tokens; those of one fork that follow each other are one event."""
    run = draft.run
    first = run.created
    start = 0
    for at in range(1, len(wanted) + 1):
        if at < len(wanted) and _follows(wanted[at - 1], wanted[at]):
            continue
        head = wanted[start]
        if head.fork is not None and head.fork not in run.forks and origin is not None:
            opened = ForkOpened(head.fork, head.sibling_group, head.branch_total, origin.number)
            draft.emit(opened)
        draft.emit(_created(draft, wanted[start:at]))
        start = at
    return [run.tokens[number] for number in range(first, run.created)]


def _follows(one: TokenParams, other: TokenParams) -> bool:
    """Whether two tokens differ by their place in one fork alone."""
    return (
        other.branch_index == one.branch_index + 1
        and other.fork == one.fork is not None
        and (other.node_ref, other.transition_ref) == (one.node_ref, one.transition_ref)
        and _prefix(other) == _prefix(one) is not None
    )


def _prefix(params: TokenParams) -> str | None:
    """What the paths of tokens in one fork have in common, if this is one of them."""
    number = str(params.branch_index)
    return params.path_id[: -len(number)] if params.path_id.endswith(f".{number}") else None


def _created(draft: Draft, wanted: Sequence[TokenParams]) -> TokensCreated:
    head = wanted[0]
    node = draft.graph.node(head.node_ref)
    with_items = head.item_var is not None
    items: list[Any] | None = [each.item for each in wanted] if with_items else None
    path = head.path_id if len(wanted) == 1 else _prefix(head)
    return TokensCreated(
        draft.run.created,
        len(wanted),
        head.node_ref,
        None if head.parent_token_id is None else int(head.parent_token_id),
        head.transition_ref,
        path or head.path_id,
        head.fork,
        head.sibling_group,
        head.branch_index,
        head.branch_total,
        tuple(TimesTaken(ref, times) for ref, times in head.iteration_counts.items()),
        head.item_var,
        None if items is None else text_of(items),
        node.task,
        node.subworkflow,
    )


# -- where branches meet


def _arrive(draft: Draft, token: LiveToken) -> None:
    """Has a token wait where its branch meets others, or go on with them."""
    if token.transition is None or token.number not in draft.run.tokens:
        return
    transition = draft.graph.transition(token.transition)
    joins = transition.synchronization
    if joins is None:
        return
    if token.fork is None or token.group != joins.sibling_group:
        draft.hear(decide_synchronization(transition, planned(token), _NOBODY))
        return
    if token.node in draft.run.forks[token.fork].met:
        draft.hear(decide_late_arrival(transition, planned(token)))
        draft.emit(TokensCancelled((token.number,), LATE))
        return
    meeting = draft.run.meetings.get(meeting_key(token.fork, token.node))
    # The time of all of them is counted from the first arrival.
    until_ms = timeout_at_ms(transition, draft.now_ms) if meeting is None else meeting.until_ms
    draft.emit(TokenArrived(token.number, until_ms))
    counts = _counts(draft, token.fork, token.node)
    decided = decide_synchronization(transition, planned(token), counts)
    _meet(draft, token.fork, token.node, draft.hear(decided))


def _meet(draft: Draft, fork: str, node: str, decisions: Iterable[Decision]) -> None:
    for decision in decisions:
        match decision:
            case ActivateFanIn():
                activate(draft, fork, node)
            case FailWorkflow():
                raise CannotGoOn(Failure(decision.name, decision.error))
            case _:
                pass


def _counts(draft: Draft, fork: str, node: str) -> Counts:
    live, meeting = draft.run.forks[fork], draft.run.meetings[meeting_key(fork, node)]
    return Counts(total=live.total, completed=meeting.branches, terminal=live.total - live.live)


def activate(draft: Draft, name: str, node: str) -> None:
    """Has the branches that wait at a node go on together; what is on its way is cancelled."""
    run, graph = draft.run, draft.graph
    fork = run.forks[name]
    waiting = waiting_at(draft, name, node)
    under_way = _under_way(draft, name) if fork.live else []
    transition = graph.transition(run.meetings[meeting_key(name, node)].transition)
    outer = None if fork.origin.place is None else run.branches[fork.origin.place].output
    decisions = draft.hear(
        decide_continuation(
            graph,
            transition,
            draft.fork_of(name),
            [_arrival(draft, each) for each in waiting],
            in_flight=[str(each.number) for each in under_way],
            enclosing_output=outer,
        )
    )
    created: list[TokenParams] = []
    for decision in decisions:
        match decision:
            case CompleteTokens():
                # Its applier merges: the sets that are decided are what that comes to.
                numbers = tuple(map(int, decision.token_ids))
                draft.emit(FanInActivated(name, node, numbers, _merges(draft, waiting)))
            case CancelTokens():
                _cancel(draft, tuple(map(int, decision.token_ids)), decision.reason, name)
            case CreateToken():
                created.append(decision.params)
            case FailWorkflow():
                raise CannotGoOn(Failure(decision.name, decision.error))
            case _:
                pass
    _check_context(draft)
    _create(draft, created)
    settle(draft, name)


def _merges(draft: Draft, arrived: Iterable[LiveToken]) -> tuple[BranchMerge, ...]:
    found = merges_of(draft.graph, {each.transition or "" for each in arrived})
    return tuple(
        BranchMerge(ref, merge.source, merge.target, merge.strategy) for ref, merge in found.items()
    )


def _arrival(draft: Draft, token: LiveToken) -> Arrival:
    return Arrival(
        token_id=str(token.number),
        branch_index=token.branch,
        transition_ref=token.transition or "",
        iteration_counts=token.taken,
        output=draft.branch_of(token).output,
    )


def _join_nobody(draft: Draft, token: LiveToken, activation: ActivateFanIn) -> None:
    """Goes on where branches would have met, had there been any."""
    graph = draft.graph
    fork = Fork(id=activation.fork or "", group=None, total=0, origin=planned(token))
    outer = None if token.place is None else draft.branch_of(token).output
    decisions = draft.hear(
        decide_continuation(
            graph,
            graph.transition(activation.transition_ref),
            fork,
            [],
            enclosing_output=outer,
            came_by=activation.came_by,
        )
    )
    _create(draft, _carry_out(draft, token, decisions), token)


def waiting_at(draft: Draft, name: str, node: str) -> list[LiveToken]:
    """The tokens of a fork that wait at a node."""
    return [
        token
        for token in draft.run.tokens.values()
        if token.fork == name and token.node == node and token.status is _WAITS
    ]


def _under_way(draft: Draft, name: str) -> list[LiveToken]:
    """The tokens of a fork, and of those within it, that still move."""
    inside = {each for each in draft.run.forks if _depth(draft, each, name) is not None}
    return [
        token
        for token in draft.run.tokens.values()
        if token.fork in inside and not (token.fork == name and token.status is _WAITS)
    ]


def _depth(draft: Draft, fork: str | None, name: str) -> int | None:
    """How deep a fork lies in another; None if it does not."""
    depth = 0
    while fork is not None:
        if fork == name:
            return depth
        depth += 1
        fork = draft.run.forks[fork].origin.fork
    return None


def _cancel(draft: Draft, numbers: tuple[int, ...], reason: str, within: str) -> None:
    """Cancels tokens of a fork, the workflows that they wait for, and the forks in it."""
    run = draft.run
    forks = dict.fromkeys(run.tokens[number].fork for number in numbers)
    posts = end_children(run, numbers, reason)
    draft.emit(TokensCancelled(numbers, reason), *queue(run, posts))
    for name in forks:
        while name not in {None, within}:
            name = _close(draft, name)  # noqa: PLW2901, from fork to fork outwards


def _close(draft: Draft, name: str | None) -> str | None:
    """Ends a fork that is over; gives the one around it."""
    fork = None if name is None else draft.run.forks.get(name)
    if name is None or fork is None or fork.live or fork.waiting:
        return None
    draft.emit(ForkEnded(name))
    return fork.origin.fork


def settle(draft: Draft, name: str | None) -> None:
    """Has branches meet that nobody can join any more, in a fork and in those around it."""
    run = draft.run
    while name is not None and name in run.forks:
        for node in run.forks[name].meetings:
            if name not in run.forks or node not in run.forks[name].meetings:
                continue
            meeting = run.meetings[meeting_key(name, node)]
            transition = draft.graph.transition(meeting.transition)
            # Who it is does not matter, and to look for one would cost as much as all of them.
            one = (Token(id="", node_ref=node, fork=name),)
            counts = _counts(draft, name, node)
            _meet(draft, name, node, draft.hear(decide_branch_end(transition, one, counts)))
        name = _close(draft, name)
