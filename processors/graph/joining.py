"""Carry out joins in a draft: tokens arrive, a join is activated, a fork ends."""

from collections.abc import Iterable
from typing import Final

from headwater.processors.graph.creating import apply_decisions, check_context, create_tokens
from headwater.processors.graph.definition import Transition
from headwater.processors.graph.draft import CannotContinue, Draft, end_children, planned
from headwater.processors.graph.joins import (
    LATE,
    Arrival,
    decide_branch_end,
    decide_continuation,
    decide_late_arrival,
    decide_synchronization,
    merges_of,
    timeout_at_ms,
)
from headwater.processors.graph.planning import (
    ActivateFanIn,
    ApplyBranchOutput,
    CancelTokens,
    CompleteTokens,
    Counts,
    CreateToken,
    Decision,
    FailWorkflow,
    Fork,
    MarkWaiting,
    SetContext,
    Token,
    TokenParams,
    TokenStatus,
)
from headwater.processors.graph.state import LiveToken, meeting_key
from headwater.processors.runs.outbox import queue
from headwater.schemas.history import (
    BranchMerge,
    Failure,
    FanInActivated,
    ForkEnded,
    TokenArrived,
    TokensCancelled,
)

_WAITING: Final = TokenStatus.WAITING_FOR_SIBLINGS
#: Counts for a token that passes a join of another group.
_NO_COUNTS: Final = Counts(total=0, completed=0, terminal=0)


def arrive_at_join(draft: Draft, token: LiveToken) -> None:
    """Let a token wait where its branch joins others, or activate the join."""
    if token.transition is None or token.number not in draft.run.tokens:
        return
    transition = draft.graph.transition(token.transition)
    synchronization = transition.synchronization
    if synchronization is None:
        return
    if token.fork is None or token.group != synchronization.sibling_group:
        draft.execute(decide_synchronization(transition, planned(token), _NO_COUNTS))
        return
    if token.node in draft.run.forks[token.fork].met:
        draft.execute(decide_late_arrival(transition, planned(token)))
        draft.emit(TokensCancelled((token.number,), LATE))
        return
    meeting = draft.run.meetings.get(meeting_key(token.fork, token.node))
    # The timeout counts from the first arrival.
    until_ms = timeout_at_ms(transition, draft.now_ms) if meeting is None else meeting.until_ms
    draft.emit(TokenArrived(token.number, until_ms))
    counts = _counts(draft, token.fork, token.node)
    decision_plan = decide_synchronization(transition, planned(token), counts, arrived_at=draft.now)
    _apply_join_decisions(draft, token.fork, token.node, draft.execute(decision_plan))


def arrive_again(draft: Draft, token: LiveToken, fork: str, transition: Transition) -> None:
    """Decide about a token that waits at a join of a fork, as if it had arrived last."""
    counts = _counts(draft, fork, token.node)
    decision_plan = decide_synchronization(transition, planned(token), counts)
    _apply_join_decisions(draft, fork, token.node, draft.execute(decision_plan))


def _apply_join_decisions(
    draft: Draft, fork: str, node: str, decisions: Iterable[Decision]
) -> None:
    for decision in decisions:
        match decision:
            case ActivateFanIn():
                activate(draft, fork, node)
            case FailWorkflow():
                raise CannotContinue(Failure(decision.name, decision.error))
            case MarkWaiting():
                pass  # It waits since its arrival, which the counts include.
            case _:
                raise AssertionError(decision)


def _counts(draft: Draft, fork: str, node: str) -> Counts:
    live, meeting = draft.run.forks[fork], draft.run.meetings[meeting_key(fork, node)]
    return Counts(total=live.total, completed=meeting.branches, terminal=live.total - live.live)


def activate(draft: Draft, name: str, node: str) -> None:
    """Activate a join with the branches that wait there. Cancel the fork's other tokens."""
    run, graph = draft.run, draft.graph
    fork = run.forks[name]
    waiting = waiting_at(draft, name, node)
    moving = _moving_tokens(draft, name) if fork.live else []
    transition = graph.transition(run.meetings[meeting_key(name, node)].transition)
    outer = None if fork.origin.branch_key is None else run.branches[fork.origin.branch_key].output
    decisions = draft.execute(
        decide_continuation(
            graph,
            transition,
            draft.fork_of(name),
            [_arrival(draft, token) for token in waiting],
            in_flight=[str(token.number) for token in moving],
            enclosing_output=outer,
        )
    )
    created: list[TokenParams] = []
    for decision in decisions:
        match decision:
            case CompleteTokens():
                numbers = tuple(map(int, decision.token_ids))
                draft.emit(FanInActivated(name, node, numbers, _merges(draft, waiting)))
            case CancelTokens():
                _cancel(draft, tuple(map(int, decision.token_ids)), decision.reason, name)
            case CreateToken():
                created.append(decision.params)
            case FailWorkflow():
                raise CannotContinue(Failure(decision.name, decision.error))
            case SetContext() | ApplyBranchOutput():
                pass  # The applier of FanInActivated merges, with the same result.
            case _:
                raise AssertionError(decision)
    check_context(draft)
    errors = (token.failure for token in sorted(waiting, key=_branch) if token.failure)
    create_tokens(draft, created, error=next(errors, None))
    evaluate_joins(draft, name)


def _branch(token: LiveToken) -> int:
    return token.branch


def _merges(draft: Draft, arrived: Iterable[LiveToken]) -> tuple[BranchMerge, ...]:
    merges = merges_of(draft.graph, {token.transition or "" for token in arrived})
    return tuple(
        BranchMerge(ref, merge.source, merge.target, merge.strategy)
        for ref, merge in merges.items()
    )


def _arrival(draft: Draft, token: LiveToken) -> Arrival:
    return Arrival(
        token_id=str(token.number),
        branch_index=token.branch,
        transition_ref=token.transition or "",
        iteration_counts=token.taken,
        output=draft.branch_of(token).output,
    )


def activate_empty_join(draft: Draft, token: LiveToken, activation: ActivateFanIn) -> None:
    """Continue at the join of a fork that has no branches."""
    graph = draft.graph
    fork = Fork(id=activation.fork or "", group=None, total=0, origin=planned(token))
    outer = None if token.branch_key is None else draft.branch_of(token).output
    decisions = draft.execute(
        decide_continuation(
            graph,
            graph.transition(activation.transition_ref),
            fork,
            [],
            enclosing_output=outer,
            came_by=activation.came_by,
        )
    )
    create_tokens(draft, apply_decisions(draft, token, decisions), token)


def waiting_at(draft: Draft, name: str, node: str) -> list[LiveToken]:
    """Return the tokens of a fork that wait at a node."""
    return [
        token
        for token in draft.run.tokens.values()
        if token.fork == name and token.node == node and token.status is _WAITING
    ]


def _moving_tokens(draft: Draft, name: str) -> list[LiveToken]:
    """Return the tokens of a fork, and of forks nested in it, that do not wait at its joins."""
    nested = {fork for fork in draft.run.forks if _depth(draft, fork, name) is not None}
    return [
        token
        for token in draft.run.tokens.values()
        if token.fork in nested and not (token.fork == name and token.status is _WAITING)
    ]


def _depth(draft: Draft, fork: str | None, name: str) -> int | None:
    """Return how many levels a fork is nested in the fork `name`, or None if it is not."""
    depth = 0
    while fork is not None:
        if fork == name:
            return depth
        depth += 1
        fork = draft.run.forks[fork].origin.fork
    return None


def _cancel(draft: Draft, numbers: tuple[int, ...], reason: str, within: str) -> None:
    """Cancel tokens, their children, and forks inside `within` that lose their last token."""
    run = draft.run
    forks = dict.fromkeys(run.tokens[number].fork for number in numbers)
    posts = end_children(run, numbers, reason)
    draft.emit(TokensCancelled(numbers, reason), *queue(run, posts))
    for name in forks:
        while name not in {None, within}:
            name = _close(draft, name)  # noqa: PLW2901


def _close(draft: Draft, name: str | None) -> str | None:
    """End a fork without tokens. Return the enclosing fork."""
    fork = None if name is None else draft.run.forks.get(name)
    if name is None or fork is None or fork.live or fork.waiting:
        return None
    draft.emit(ForkEnded(name))
    return fork.origin.fork


def evaluate_joins(draft: Draft, name: str | None) -> None:
    """Evaluate joins that no branch can reach anymore, in a fork and in those around it."""
    run = draft.run
    while name is not None and name in run.forks:
        for node in run.forks[name].meetings:
            if name not in run.forks or node not in run.forks[name].meetings:
                continue
            meeting = run.meetings[meeting_key(name, node)]
            transition = draft.graph.transition(meeting.transition)
            # Any waiting token will do; searching for a real one would scan all tokens.
            placeholder = (Token(id="", node_ref=node, fork=name),)
            counts = _counts(draft, name, node)
            _apply_join_decisions(
                draft, name, node, draft.execute(decide_branch_end(transition, placeholder, counts))
            )
        name = _close(draft, name)
