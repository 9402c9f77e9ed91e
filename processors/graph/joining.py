"""Carry out joins in a draft: tokens arrive, a join is activated, a branch fails, a fork ends."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from headwater.processors.graph.appliers import output_at_join
from headwater.processors.graph.creating import (
    apply_decisions,
    context_after,
    context_failure,
    create_tokens,
)
from headwater.processors.graph.draft import (
    CannotContinue,
    Draft,
    FailedJoin,
    JoinFailed,
    end_children,
    fail,
)
from headwater.processors.graph.gathering import (
    join_transitions,
    unmet_transitions,
    wait_for_transitions,
)
from headwater.processors.graph.joins import (
    ACTIVATED,
    Arrival,
    JoinState,
    decide_branch_end,
    decide_continuation,
    decide_synchronization,
    merges_of,
    timeout_at_ms,
)
from headwater.processors.graph.outcomes import decide_cancel
from headwater.processors.graph.planning import (
    ActivateFanIn,
    Counts,
    CreateToken,
    Decision,
    FailWorkflow,
    Fork,
    MarkWaiting,
    Taken,
    TokenParams,
)
from headwater.processors.graph.routing import decide_routing
from headwater.processors.graph.state import (
    LiveFork,
    LiveToken,
    Meeting,
    branch_key,
    meeting_key,
    parse_meeting_key,
)
from headwater.processors.runs.outbox import queue
from headwater.schemas.history import (
    BranchFailed,
    BranchMerge,
    Failure,
    FanInActivated,
    ForkEnded,
    TokenArrived,
    TokensCancelled,
    WaitRestarted,
)

#: Counts for a token that passes a join of another group.
_NO_COUNTS: Final = Counts(total=0, completed=0, terminal=0)
_NOT_REACHED: Final = Meeting("")
#: Reason for cancelling the other tokens of a branch that has failed.
_BRANCH_FAILED: Final = "its branch failed"


# -- tokens of a fork


class Members(NamedTuple):
    """Live tokens of a fork or a branch, and of the forks nested in it.

    Attributes:
        waiting: Tokens that wait at joins of the fork.
        moving: Numbers of all other tokens, with those of nested forks.
        nested: Nested forks, inner ones first.
    """

    waiting: list[LiveToken]
    moving: list[int]
    nested: list[str]


def members_of(draft: Draft, name: str, branches: Iterable[int] | None = None) -> Members:
    """Return the live tokens of a fork, or of some of its branches, by branch."""
    run = draft.run
    members = Members([], [], [])
    forks = [(name, range(run.forks[name].total) if branches is None else branches)]
    # The list grows while it is read: nested forks are appended.
    for fork, indexes in forks:
        for branch in (run.branches.get(branch_key(fork, index)) for index in indexes):
            if branch is None:
                continue
            for number in branch.tokens:
                if fork == name and run.tokens[number].is_at_join:
                    members.waiting.append(run.tokens[number])
                else:
                    members.moving.append(number)
            forks += [(nested, range(run.forks[nested].total)) for nested in branch.forks]
    members.nested.extend(fork for fork, _ in reversed(forks[1:]))
    return members


# -- arrivals


def arrive(draft: Draft, tokens: Sequence[LiveToken]) -> None:
    """Let new tokens wait where their branches join others, then carry out what follows from it.

    All of them arrive before a join is activated: if that fails, a retry finds them there.

    Raises:
        JoinFailed: No join of a fork can continue anymore, or a join cannot.
    """
    consequences = [found for token in tokens for found in _arrivals(draft, token)]
    for consequence in consequences:
        consequence()


def _arrivals(draft: Draft, token: LiveToken) -> Iterator[Callable[[], None]]:
    """Let a token wait if its way leads to a join. Yield what follows from its arrival.

    By the time it is called, something else may have ended the tokens that wait there.
    """
    yield from _arrive_at_join(draft, token)
    for key in wait_for_transitions(draft, token):
        yield partial(join_transitions, draft, key)


def _activate_if_waiting(draft: Draft, name: str, node: str) -> None:
    if meeting_key(name, node) in draft.run.meetings:
        activate(draft, name, node)


def _arrive_at_join(draft: Draft, token: LiveToken) -> Iterator[Callable[[], None]]:
    """Let a token wait at its join, if its transition leads to one. Yield what follows."""
    if token.transition is None:
        return
    transition = draft.graph.transition(token.transition)
    synchronization = transition.synchronization
    if synchronization is None:
        return
    if token.fork is None or token.group != synchronization.sibling_group:
        draft.execute(decide_synchronization(transition, draft.planned(token), _NO_COUNTS))
        return
    meeting = draft.run.meetings.get(meeting_key(token.fork, token.node))
    # The timeout counts from the first arrival.
    until_ms = timeout_at_ms(transition, draft.now_ms) if meeting is None else meeting.until_ms
    draft.emit(TokenArrived(token.number, until_ms))
    yield from _continues(draft, token.fork, token)


def arrive_again(draft: Draft, token: LiveToken, fork: str) -> None:
    """Decide about a token that waits at a join of a fork, as if it had arrived last."""
    for consequence in _continues(draft, fork, token):
        consequence()


def _continues(draft: Draft, name: str, token: LiveToken) -> Iterator[Callable[[], None]]:
    """Decide about a token that has arrived. Yield what follows for its join or its fork."""
    joins = {join.transition.to_node_ref: join for join in _joins(draft, name)}
    own = joins.pop(token.node)
    transition = draft.graph.transition(token.transition or "")
    waiting = (number for number in own.waiting if number != str(token.number))
    plan = decide_synchronization(
        transition,
        draft.planned(token),
        own.counts,
        waiting,
        tuple(joins.values()),
        arrived_at=draft.now,
    )
    for decision in draft.execute(plan):
        match decision:
            case ActivateFanIn():
                yield partial(_activate_if_waiting, draft, name, token.node)
            case FailWorkflow():
                failure = Failure(decision.name, decision.error)
                yield partial(_fail_fork, draft, name, failure)
            case MarkWaiting():
                pass  # It waits since its arrival, which the counts include.
            case _:
                raise AssertionError(decision)


def _joins(draft: Draft, name: str) -> Iterator[JoinState]:
    """Yield the joins of a fork, first those where tokens wait, in the order of their arrival."""
    fork = draft.run.forks[name]
    joins = draft.graph.joins_of(fork.group)
    for node in dict.fromkeys((*fork.meetings, *joins)):
        meeting = draft.run.meetings.get(meeting_key(name, node), _NOT_REACHED)
        counts = Counts(
            total=fork.total,
            completed=meeting.branches,
            failed=fork.failed,
            terminal=fork.total - fork.live,
            settled=meeting.settled,
        )
        transition = meeting.transition or joins[node][0].ref
        yield JoinState(draft.graph.transition(transition), counts, _waiting_ids(draft, name, node))


def _waiting_ids(draft: Draft, name: str, node: str) -> Iterator[str]:
    for token in waiting_at(draft, name, node):
        yield str(token.number)


def waiting_at(draft: Draft, name: str, node: str) -> list[LiveToken]:
    """Return the tokens of a fork that wait at a node, by branch."""
    return [token for token in members_of(draft, name).waiting if token.node == node]


# -- activation


def activate(draft: Draft, name: str, node: str) -> None:
    """Continue at a join with the branches that wait there, and end its fork.

    If the outputs cannot be merged, the run fails and the tokens stay at the join: a retry of the
    run evaluates it again.
    """
    run = draft.run
    fork, members = run.forks[name], members_of(draft, name)
    waiting = [token for token in members.waiting if token.node == node]
    elsewhere = [token.number for token in members.waiting if token.node != node]
    transition = draft.graph.transition(run.meetings[meeting_key(name, node)].transition)
    outer = None if fork.origin.fork is None else run.branches[fork.origin.branch_key].output
    decide = partial(
        decide_continuation,
        draft.graph,
        transition,
        draft.fork_of(name),
        [_arrival(draft, token) for token in waiting],
        elsewhere=[str(number) for number in elsewhere],
        in_flight=[str(number) for number in members.moving],
        failed_branches=fork.failed,
        enclosing_output=outer,
    )
    before, merges = draft.mark(), _merges(draft, waiting)
    decisions = draft.execute(decide())
    failure = _activation_failure(draft, decisions)
    if failure is not None:
        if not (_follows_error(draft, fork, node, failure) or may_fail(draft, fork.origin)):
            fail(draft, failure)
        # The node where the branches meet fails, without their outputs.
        draft.drop_decisions(before.plans)
        decisions, merges = draft.execute(decide(merges=False)), ()
    numbers = tuple(token.number for token in waiting)
    # The applier merges the outputs, with the same result as the SetContext decisions.
    draft.emit(FanInActivated(name, node, numbers, merges, tuple(elsewhere)))
    _cancel(draft, members, ACTIVATED)
    errors = (token.failure for token in waiting if token.failure)
    try:
        created = create_tokens(draft, _created(decisions), error=next(errors, None))
    except CannotContinue as error:
        # A retry of the run, with other limits, evaluates the join again.
        draft.take_back(before)
        raise JoinFailed(error.failure) from error
    draft.emit(ForkEnded(name))
    if failure is not None:
        draft.failed_joins += [FailedJoin(token.number, failure, before) for token in created]


def _follows_error(draft: Draft, fork: LiveFork, node: str, failure: Failure) -> bool:
    """Whether an error transition of a join matches if the outputs cannot be merged."""
    if not draft.graph.error_tiers(node):
        return False
    number = draft.run.created
    token = msgspec.structs.replace(fork.origin, number=number, node=node, failed=fork.failed)
    scope = draft.scope(token, failure)
    at_node = draft.planned(token)
    routing = decide_routing(draft.graph, at_node, scope, draft.fork_of, failed_node=True)
    return any(not isinstance(decision, FailWorkflow) for decision in routing.decisions)


def _activation_failure(draft: Draft, decisions: Sequence[Decision]) -> Failure | None:
    for decision in decisions:
        if isinstance(decision, FailWorkflow):
            return Failure(decision.name, decision.error)
    return context_failure(draft, context_after(draft, decisions))


def _created(decisions: Iterable[Decision]) -> list[TokenParams]:
    return [decision.params for decision in decisions if isinstance(decision, CreateToken)]


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
        taken=Taken(token.taken),
        output=output_at_join(draft.run, token),
        inner=token.inner,
    )


def activate_empty_join(
    draft: Draft, token: LiveToken, activation: ActivateFanIn, error: Failure | None
) -> None:
    """Continue at the join of a fork that has no branches, with the error that led to it."""
    graph = draft.graph
    fork = Fork(id=activation.fork or "", group=None, total=0, origin=draft.planned(token))
    outer = None if token.fork is None else draft.branch_of(token).output
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
    create_tokens(draft, apply_decisions(draft, token, decisions), token, error)


# -- the end of branches and forks


def may_fail(draft: Draft, token: LiveToken) -> bool:
    """Whether a join of a fork around a token tolerates that its branch fails."""
    return _tolerant_branch(draft, token) is not None


def _tolerant_branch(draft: Draft, token: LiveToken) -> tuple[str, int] | None:
    """Return the branch of the innermost fork around a token that tolerates failures."""
    name, index = token.fork, token.branch
    while name is not None:
        fork = draft.run.forks[name]
        if draft.graph.tolerates_failures(fork.group):
            return name, index
        name, index = fork.origin.fork, fork.origin.branch
    return None


def fail_branch(draft: Draft, token: LiveToken, failure: Failure) -> None:
    """End the branch around a token in the innermost fork that tolerates it; see `may_fail`.

    Its other tokens that move are cancelled; those that wait at a join of the fork have arrived.

    Raises:
        JoinFailed: No fork tolerates it, or no join of the fork can continue without the branch.
            Nothing has changed.
    """
    branch = _tolerant_branch(draft, token)
    if branch is None:
        raise JoinFailed(failure)
    (name, index), before = branch, draft.mark()
    members = members_of(draft, name, [index])
    if members.moving:
        draft.execute(decide_cancel(map(str, members.moving), _BRANCH_FAILED))
    _cancel(draft, members, _BRANCH_FAILED)
    draft.emit(BranchFailed(name, index, failure))
    try:
        evaluate_joins(draft, name)
    except JoinFailed:
        draft.take_back(before)
        raise


def _fail_fork(draft: Draft, name: str, failure: Failure) -> None:
    """Fail the branch around a fork of which no join can continue, unless the fork has ended."""
    fork = draft.run.forks.get(name)
    if fork is not None:
        fail_branch(draft, fork.origin, failure)


def _check_held(draft: Draft, token: LiveToken) -> None:
    """Fail the branch of a token if nothing else in it moves than tokens that wait in vain."""
    failure = unmet_transitions(draft, token)
    if failure is not None:
        fail_branch(draft, token, failure)


def _cancel(draft: Draft, members: Members, reason: str) -> None:
    """Cancel tokens that move with their children, and end nested forks."""
    numbers = tuple(members.moving)
    if numbers:
        posts = end_children(draft.run, numbers, reason)
        draft.emit(TokensCancelled(numbers, reason), *queue(draft.run, posts))
    draft.emit(*(ForkEnded(fork) for fork in members.nested))


def evaluate(draft: Draft, token: LiveToken, created: Sequence[LiveToken]) -> None:
    """Evaluate joins after a token has ended, and those that follow it have arrived.

    These are joins in its branch, of the forks around it, and of forks that it has begun.

    Raises:
        JoinFailed: A join can no longer be met, or cannot continue.
    """
    _check_held(draft, token)
    evaluated = {new_token.fork for new_token in created if _is_evaluated(draft, new_token)}
    for name in dict.fromkeys([token.fork, *(new_token.fork for new_token in created)]):
        if name not in evaluated:
            evaluate_joins(draft, name)


def _is_evaluated(draft: Draft, token: LiveToken) -> bool:
    """Whether the arrival of a token was the evaluation of its fork, which has one join."""
    if token.fork is None or token.transition is None:
        return False
    joined = draft.graph.transition(token.transition).synchronization
    return (
        joined is not None
        and joined.sibling_group == token.group
        and len(draft.graph.joins_of(token.group)) == 1
    )


def evaluate_joins(draft: Draft, name: str | None) -> None:
    """Evaluate the joins of a fork, and end it without tokens; then those of the forks around it.

    Raises:
        JoinFailed: No join of a fork can continue anymore, or a join cannot.
    """
    while name is not None and name in draft.run.forks:
        fork = draft.run.forks[name]
        for decision in _decide_branch_end(draft, name, fork):
            match decision:
                case ActivateFanIn():
                    activate(draft, name, decision.node_ref)
                    return
                case FailWorkflow():
                    fail_branch(draft, fork.origin, Failure(decision.name, decision.error))
                    return
                case _:
                    raise AssertionError(decision)
        if fork.live or fork.waiting:
            return
        draft.emit(ForkEnded(name))
        _check_held(draft, fork.origin)
        name = fork.origin.fork


def _decide_branch_end(draft: Draft, name: str, fork: LiveFork) -> tuple[Decision, ...]:
    graph, group = draft.graph, fork.group
    waits_for_all = not graph.joins_early(group)
    may_arrive = fork.live and (waits_for_all or not (fork.meetings or graph.has_quorum(group)))
    if may_arrive or not graph.joins_of(group):
        return ()
    failure = None
    if fork.failure is not None:
        failure = FailWorkflow(error=fork.failure.message, name=fork.failure.name)
    return draft.execute(decide_branch_end(name, list(_joins(draft, name)), failure))


def evaluate_all(draft: Draft) -> None:
    """Evaluate all joins, in a run that retries another.

    Some can be met, since the outputs of branches were changed, or can no longer be.

    Raises:
        JoinFailed: A join can no longer be met, or cannot continue.
    """
    run = draft.run
    # Once for each token, since a node may have been reached several times.
    for key in [key for key, tokens in run.gatherings.items() for _ in tokens]:
        join_transitions(draft, key)
    for name in list(run.forks):
        evaluate_joins(draft, name)
    for number, *_ in list(run.gatherings.values()):
        token = draft.run.tokens.get(number)
        if token is not None:
            _check_held(draft, token)


def restart_waits(draft: Draft) -> None:
    """Give the waits at joins their full time again, in a run that retries another."""
    for key, meeting in list(draft.run.meetings.items()):
        until_ms = timeout_at_ms(draft.graph.transition(meeting.transition), draft.now_ms)
        if until_ms is not None:
            name, node = parse_meeting_key(key)
            waiting = tuple(token.number for token in waiting_at(draft, name, node))
            draft.emit(WaitRestarted(name, node, waiting, until_ms))
