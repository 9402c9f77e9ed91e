"""Advance a run after a token has its result: create, wait, join."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from headwater.processors.graph.context import Scope
from headwater.processors.graph.data_flow import decide_completion, map_output
from headwater.processors.graph.definition import Transition
from headwater.processors.graph.dispatching import dispatch
from headwater.processors.graph.draft import (
    CannotContinue,
    Draft,
    end,
    end_children,
    fail,
    planned,
    text_of,
)
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
    INTEGER_ERROR,
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
    SetContext,
    Token,
    TokenParams,
    TokenStatus,
)
from headwater.processors.graph.routing import decide_routing, decide_start, onward
from headwater.processors.graph.state import LiveToken, meeting_key
from headwater.processors.input_texts import wide_integer_problem
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

_WAITING: Final = TokenStatus.WAITING_FOR_SIBLINGS
#: Counts for a token that passes a join of another group.
_NO_COUNTS: Final = Counts(total=0, completed=0, terminal=0)


def begin(draft: Draft) -> None:
    """Create the first token of a run."""
    start = draft.execute(decide_start(draft.graph, draft.run.input))
    _create(draft, _apply_decisions(draft, None, start))


def complete(draft: Draft, token: LiveToken, result: Json) -> None:
    """Record the result of a token and create the tokens that follow.

    If the run cannot continue with the result, only a failure of the token is recorded: a retry of
    the run runs its task again.
    """
    attempt = token.attempts + 1
    try:
        _check_result(result)
        draft.emit(TokenCompleted(token.number, attempt, result))
        outputs = map_output(draft.graph, planned(token), draft.scope(token), json.loads(result))
        _apply_decisions(draft, token, draft.execute(outputs))
        route(draft, token)
    except CannotContinue as error:
        draft.reset()
        draft.emit(TokenFailed(token.number, attempt, error.failure, result=result))
        fail(draft, error.failure, (token.number,))


def _check_result(result: Json) -> None:
    problem = wide_integer_problem(result, "result")
    if problem:
        raise CannotContinue(Failure(INTEGER_ERROR, problem))


def route(draft: Draft, token: LiveToken) -> None:
    """Create the tokens that follow a completed token.

    Raises:
        CannotContinue: An expression failed, or branches can no longer join.
    """
    routed = draft.execute(
        decide_routing(draft.graph, planned(token), draft.scope(token), draft.fork_of)
    )
    created = _create(draft, _apply_decisions(draft, token, routed), token)
    for decision in routed:
        if isinstance(decision, ActivateFanIn):
            _activate_empty_join(draft, token, decision)
    for new_token in created:
        _arrive_at_join(draft, new_token)
    evaluate_joins(draft, token.fork)
    # A fork that has just begun may be over already: all its branches have joined.
    for name in dict.fromkeys(new_token.fork for new_token in created):
        evaluate_joins(draft, name)


def traverse(draft: Draft, token: LiveToken, transition: Transition) -> None:
    """Complete a token and move it along a transition, whatever its conditions say.

    A token that already waits where the transition leads is counted there again.
    """
    if token.status is _WAITING and token.fork is not None:
        counts = _counts(draft, token.fork, token.node)
        decision_plan = decide_synchronization(transition, planned(token), counts)
        _apply_join_decisions(draft, token.fork, token.node, draft.execute(decision_plan))
        return
    draft.emit(TokenCompleted(token.number, token.attempts + 1, "null"))
    created = _create(draft, [onward(transition, planned(token), draft.fork_of)], token)
    for new_token in created:
        _arrive_at_join(draft, new_token)
        evaluate_joins(draft, new_token.fork)
    evaluate_joins(draft, token.fork)


def advance(draft: Draft) -> None:
    """Dispatch pending tokens, finish a run without tokens, suspend a run that no host works on."""
    run = draft.run
    dispatch(draft)
    if run.in_flight > run.jobs:
        return
    if next(iter(run.tokens), None) is None:
        _finish(draft)
    elif run.status is RunStatus.ACTIVE:
        draft.emit(RunSuspended())


def _finish(draft: Draft) -> None:
    unfinished = draft.graph.final_state_problem(draft.run.shared, draft.evaluations)
    if unfinished:
        fail(draft, Failure("ContextInvalidError", unfinished))
    scope = Scope(draft.context(), evaluations=draft.evaluations)
    for decision in draft.execute(decide_completion(draft.graph, scope)):
        match decision:
            case FailWorkflow():
                fail(draft, Failure(decision.name, decision.error))
            case CompleteWorkflow():
                schema = draft.graph.output_schema
                problem = schema and schema.problem(decision.output, "output", draft.evaluations)
                if problem:
                    fail(draft, Failure("OutputInvalidError", problem))
                end(draft, RunCompleted(text_of(decision.output)), "the run is complete")
            case _:
                pass


# -- planner decisions to events


def _apply_decisions(
    draft: Draft, token: LiveToken | None, decisions: Iterable[Decision]
) -> list[TokenParams]:
    """Emit the events of planner decisions. Return the tokens to create."""
    changes: list[ContextChange] = []
    to_create: list[TokenParams] = []
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
                to_create.append(decision.params)
            case FailWorkflow():
                raise CannotContinue(Failure(decision.name, decision.error))
            case _:
                pass
    if changes:
        draft.emit(ContextChanged(tuple(changes)))
        _check_context(draft)
    return to_create


def _check_context(draft: Draft) -> None:
    schema = draft.graph.written_schema
    problem = schema and schema.problem(draft.run.shared, "state", draft.evaluations)
    if problem:
        raise CannotContinue(Failure("ContextInvalidError", problem))


def _create(
    draft: Draft, to_create: Sequence[TokenParams], origin: LiveToken | None = None
) -> list[LiveToken]:
    """Create tokens. Consecutive tokens of one fork become one event."""
    run = draft.run
    first = run.created
    start = 0
    for stop in range(1, len(to_create) + 1):
        if stop < len(to_create) and _follows(to_create[stop - 1], to_create[stop]):
            continue
        head = to_create[start]
        if head.fork is not None and head.fork not in run.forks and origin is not None:
            fork_opened = ForkOpened(
                head.fork, head.sibling_group, head.branch_total, origin.number
            )
            draft.emit(fork_opened)
        draft.emit(_tokens_created_event(draft, to_create[start:stop]))
        start = stop
    return [run.tokens[number] for number in range(first, run.created)]


def _follows(first: TokenParams, second: TokenParams) -> bool:
    """Whether two tokens differ only in their branch of one fork."""
    return (
        second.branch_index == first.branch_index + 1
        and second.fork == first.fork is not None
        and (second.node_ref, second.transition_ref) == (first.node_ref, first.transition_ref)
        and _prefix(second) == _prefix(first) is not None
    )


def _prefix(params: TokenParams) -> str | None:
    """Return the common path prefix of a fork's tokens, if this token is in a branch."""
    number = str(params.branch_index)
    return params.path_id[: -len(number)] if params.path_id.endswith(f".{number}") else None


def _tokens_created_event(draft: Draft, to_create: Sequence[TokenParams]) -> TokensCreated:
    head = to_create[0]
    node = draft.graph.node(head.node_ref)
    with_items = head.item_var is not None
    items: list[Any] | None = [params.item for params in to_create] if with_items else None
    path = head.path_id if len(to_create) == 1 else _prefix(head)
    return TokensCreated(
        draft.run.created,
        len(to_create),
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


# -- joins


def _arrive_at_join(draft: Draft, token: LiveToken) -> None:
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
    decision_plan = decide_synchronization(transition, planned(token), counts)
    _apply_join_decisions(draft, token.fork, token.node, draft.execute(decision_plan))


def _apply_join_decisions(
    draft: Draft, fork: str, node: str, decisions: Iterable[Decision]
) -> None:
    for decision in decisions:
        match decision:
            case ActivateFanIn():
                activate(draft, fork, node)
            case FailWorkflow():
                raise CannotContinue(Failure(decision.name, decision.error))
            case _:
                pass


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
                # The applier of FanInActivated merges the outputs, with the same result as the
                # SetContext decisions.
                numbers = tuple(map(int, decision.token_ids))
                draft.emit(FanInActivated(name, node, numbers, _merges(draft, waiting)))
            case CancelTokens():
                _cancel(draft, tuple(map(int, decision.token_ids)), decision.reason, name)
            case CreateToken():
                created.append(decision.params)
            case FailWorkflow():
                raise CannotContinue(Failure(decision.name, decision.error))
            case _:
                pass
    _check_context(draft)
    _create(draft, created)
    evaluate_joins(draft, name)


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


def _activate_empty_join(draft: Draft, token: LiveToken, activation: ActivateFanIn) -> None:
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
    _create(draft, _apply_decisions(draft, token, decisions), token)


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
