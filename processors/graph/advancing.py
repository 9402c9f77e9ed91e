"""End the nodes of tokens with a result or an error, and advance the run after that."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headwater.processors.graph.context import Scope
from headwater.processors.graph.creating import apply_decisions, create_tokens
from headwater.processors.graph.data_flow import decide_completion, map_output
from headwater.processors.graph.definition import Transition
from headwater.processors.graph.dispatching import WAIT_RESULT, Ended, dispatch
from headwater.processors.graph.draft import (
    CannotContinue,
    Draft,
    JoinFailed,
    RunOver,
    end,
    end_children,
    fail,
    text_of,
)
from headwater.processors.graph.joining import (
    activate_empty_join,
    arrive,
    arrive_again,
    evaluate,
    evaluate_all,
    fail_branch,
    may_fail,
    restart_waits,
)
from headwater.processors.graph.outcomes import (
    decide_failure,
    decide_result,
    decide_subworkflow_result,
    decide_subworkflow_timeout,
)
from headwater.processors.graph.planning import (
    INTEGER_ERROR,
    ActivateFanIn,
    CompleteWorkflow,
    FailWorkflow,
    InitializeWorkflow,
    Planned,
    Token,
    TokenStatus,
)
from headwater.processors.graph.routing import decide_routing, decide_start, onward
from headwater.processors.graph.state import LiveToken
from headwater.processors.input_texts import wide_integer_problem
from headwater.processors.runs.outbox import queue
from headwater.schemas.failures import DEAD_END
from headwater.schemas.history import (
    Failure,
    GraphStarted,
    Json,
    RoutingFailed,
    RunCompleted,
    RunEvent,
    RunSuspended,
    TokenCompleted,
    TokenFailed,
)
from headwater.schemas.statuses import RunStatus


def act_and_advance(draft: Draft, action: Callable[[Draft], None]) -> list[RunEvent]:
    """Run an action in a draft, then everything that follows from it. Return the events."""
    try:
        action(draft)
        if not draft.run.ended:
            advance(draft)
    except RunOver:
        pass
    except CannotContinue as error:
        with suppress(RunOver):
            fail(draft, error.failure)
    return draft.events


def begin(draft: Draft, started: GraphStarted) -> None:
    """Start a run: initialize it and create its first token."""
    initialized, *others = draft.execute(decide_start(draft.graph, draft.run.input))
    assert isinstance(initialized, InitializeWorkflow)  # noqa: S101, the first decision of a run
    draft.emit(started)
    create_tokens(draft, apply_decisions(draft, None, others))


# -- the end of a node


def complete(draft: Draft, token: LiveToken, result: Json, consumed: str | None = None) -> None:
    """Record the result of a token and create the tokens that follow.

    If the result cannot be mapped, its node has failed. If the run cannot continue for another
    reason, the node stays completed, and a retry of the run decides again what follows.

    Args:
        draft: Draft of the run.
        token: The token.
        result: Result of its node.
        consumed: Event that the node waited for.

    Raises:
        RunOver: The run fails.
    """
    attempt, before = token.attempts + 1, draft.mark()
    try:
        _check_result(result)
        at_node, value = draft.planned(token), json.loads(result)
        for _ in draft.execute(_decide_result(token, at_node, value)):
            draft.emit(TokenCompleted(token.number, attempt, result, consumed))
        scope = draft.scope(token)
        mapped = draft.execute(map_output(draft.graph, at_node, scope, value))
        apply_decisions(draft, token, mapped)
    except CannotContinue as error:
        draft.take_back(before)
        fail_node(draft, token, error.failure, result=result, consumed=consumed)
        return
    # Conditions see what the mapping has changed.
    _route_completed(draft, token, at_node, draft.scope(token) if mapped else scope)
    fail_joins(draft)


def _decide_result(token: LiveToken, at_node: Token, result: Any) -> Planned:  # noqa: ANN401, any JSON
    if token.child is None:
        return decide_result(at_node.id)
    return decide_subworkflow_result(at_node, result, None)


def _check_result(result: Json) -> None:
    problem = wide_integer_problem(result, "result")
    if problem:
        raise CannotContinue(Failure(INTEGER_ERROR, problem))


def fail_attempt(
    draft: Draft,
    token: LiveToken,
    failure: Failure,
    retry_at_ms: int | None,
    *,
    timed_out: bool = False,
) -> None:
    """Record a failed attempt of a task; without a retry its node has failed."""
    if retry_at_ms is None:
        fail_node(draft, token, failure, timed_out=timed_out)
    else:
        attempt = token.attempts + 1
        draft.emit(TokenFailed(token.number, attempt, failure, retry_at_ms, timed_out))


def fail_node(
    draft: Draft,
    token: LiveToken,
    failure: Failure,
    *,
    timed_out: bool = False,
    result: Json | None = None,
    consumed: str | None = None,
) -> None:
    """Record that a node has failed for good: its error transitions are followed.

    Without any that matches, its branch fails if a join tolerates that, else the run.

    Args:
        draft: Draft of the run.
        token: The token.
        failure: The error.
        timed_out: Whether a timeout ended the node.
        result: Its result, if that could not be mapped.
        consumed: Event that the node waited for.

    Raises:
        RunOver: The run fails.
    """
    parts = (token.number, token.attempts + 1, failure, None, timed_out, result)
    of_run = _survive(draft, token, failure, TokenFailed(*parts, True, consumed))
    if of_run is None:
        fail_joins(draft)
        return
    for _ in draft.execute(_decide_failure(draft, token, failure, timed_out)):
        draft.emit(TokenFailed(*parts))
    fail(draft, of_run, (token.number,))


def _survive(
    draft: Draft, token: LiveToken, failure: Failure, handled: TokenFailed
) -> Failure | None:
    """Continue after a node has failed. Return the error of the run if it cannot continue.

    Args:
        draft: Draft of the run. If it cannot continue, nothing in it has changed.
        token: The token.
        failure: The error.
        handled: The end of the token if the run continues.
    """
    before = draft.mark()

    def end_handled() -> None:
        # A child that took too long still runs.
        late = (token.number,) if handled.timed_out else ()
        posts = end_children(draft.run, late, "it took too long")
        for _ in draft.execute(_decide_failure(draft, token, failure, handled.timed_out)):
            draft.emit(handled, *queue(draft.run, posts))

    try:
        routing = _error_routing(draft, token, failure)
        if routing.decisions:
            end_handled()
            follow(draft, token, routing, failure)
            return None
        draft.execute(routing)
        if may_fail(draft, token):
            end_handled()
            fail_branch(draft, token, failure)
            return None
    except CannotContinue as error:
        draft.take_back(before)
        return error.failure
    return failure


def _error_routing(draft: Draft, token: LiveToken, failure: Failure) -> Planned:
    """Decide which error transitions a token takes whose node has failed."""
    if not draft.graph.error_tiers(token.node):
        return Planned()
    at_node, scope = draft.planned(token), draft.scope(token, failure)
    return decide_routing(draft.graph, at_node, scope, draft.fork_of, failed_node=True)


def _decide_failure(
    draft: Draft,
    token: LiveToken,
    failure: Failure,
    timed_out: bool,
) -> Planned:
    """Decide the end of a token whose node has failed for good."""
    at_node, child = draft.planned(token), token.child
    if child is None:
        return decide_failure(at_node, failure.name, timed_out=timed_out)
    timeout_ms = draft.graph.node(token.node).timeout_ms
    if not timed_out or timeout_ms is None or token.at_ms is None:
        return decide_subworkflow_result(at_node, None, failure.message)
    elapsed_ms = timeout_ms + draft.now_ms - token.at_ms
    return decide_subworkflow_timeout(
        at_node, child.instance_id, timeout_ms=timeout_ms, elapsed_ms=elapsed_ms
    )


# -- where tokens continue


def _route_completed(draft: Draft, token: LiveToken, at_node: Token, scope: Scope) -> None:
    """Create the tokens that follow a completed token.

    Raises:
        RunOver: The run fails.
    """
    before = draft.mark()
    try:
        route(draft, token, at_node, scope)
    except JoinFailed as error:
        fail(draft, error.failure)
    except CannotContinue as error:
        draft.take_back(before)
        draft.emit(RoutingFailed(token.number))
        fail(draft, error.failure)


def continue_failed(draft: Draft) -> None:
    """Continue a failed run: decide again what could not be decided, and evaluate the joins.

    Nothing that has completed is repeated. Joins have their full time again.

    Raises:
        RunOver: The run fails again.
        JoinFailed: The run fails again.
    """
    run = draft.run
    restart_waits(draft)
    if run.latest is not None and run.undecided == run.run_number - 1:
        token = run.latest
        _route_completed(draft, token, draft.planned(token), draft.scope(token))
    evaluate_all(draft)


def route(draft: Draft, token: LiveToken, at_node: Token, scope: Scope) -> None:
    """Create the tokens that follow a completed token; see `_route_completed`.

    If its transitions do not match although one of them must, its branch may fail.

    Raises:
        CannotContinue: An expression failed, no transition matched, or there are too many tokens.
        JoinFailed: Branches can no longer join, or a join cannot continue.
    """
    routing = decide_routing(draft.graph, at_node, scope, draft.fork_of)
    dead_end = _dead_end(routing)
    if dead_end is None or not may_fail(draft, token):
        follow(draft, token, routing)
        return
    draft.execute(routing)
    try:
        fail_branch(draft, token, dead_end)
    except JoinFailed as error:
        raise CannotContinue(error.failure) from error


def _dead_end(routing: Planned) -> Failure | None:
    match routing.decisions:
        case (FailWorkflow(error=error, name=name),) if name == DEAD_END:
            return Failure(name, error)
        case _:
            return None


def follow(draft: Draft, token: LiveToken, routing: Planned, error: Failure | None = None) -> None:
    """Create the tokens of a routing.

    Args:
        draft: Draft of the run, in which the token has ended.
        token: The token.
        routing: Where it continues.
        error: Why its node failed, if error transitions are followed.

    Raises:
        CannotContinue: An expression failed, branches can no longer join, or there are too many
            tokens.
    """
    routed = draft.execute(routing)
    created = create_tokens(draft, apply_decisions(draft, token, routed), token, error)
    for decision in routed:
        if isinstance(decision, ActivateFanIn):
            activate_empty_join(draft, token, decision, error)
    arrive(draft, created)
    evaluate(draft, token, created)


def traverse(draft: Draft, token: LiveToken, transition: Transition) -> None:
    """Complete a token and move it along a transition, whatever its conditions say.

    A token that already waits where the transition leads is counted there again.
    """
    if token.is_at_join and token.fork is not None:
        arrive_again(draft, token, token.fork)
        return
    draft.emit(TokenCompleted(token.number, token.attempts + 1, "null"))
    created = create_tokens(draft, [onward(transition, draft.planned(token), draft.fork_of)], token)
    arrive(draft, created)
    evaluate(draft, token, created)


# -- what follows


def advance(draft: Draft) -> None:
    """Dispatch pending tokens, finish a run without tokens, suspend a run that no host works on."""
    fail_joins(draft)
    while (ended := dispatch(draft)) is not None:
        _end_node(draft, ended)
    run = draft.run
    if run.in_flight > run.jobs:
        return
    if next(iter(run.tokens), None) is None:
        _finish(draft)
    elif run.status is RunStatus.ACTIVE:
        draft.emit(RunSuspended())


def fail_joins(draft: Draft) -> None:
    """Follow the errors of joins where outputs could not be merged: their nodes have failed.

    If the run cannot continue, such a join is taken back, so a retry of the run evaluates it again.
    """
    if not draft.failed_joins:
        return
    done = 0
    while done < len(draft.failed_joins):
        join = draft.failed_joins[done]
        done += 1
        token = draft.run.tokens.get(join.token)
        if token is None:
            continue  # Another join has ended its fork since.
        handled = TokenFailed(token.number, 1, join.failure, handled=True)
        of_run = _survive(draft, token, join.failure, handled)
        if of_run is not None:
            fail(draft, of_run)
    draft.failed_joins.clear()


def end_wait(draft: Draft, token: LiveToken) -> None:
    """Complete a node that waited for a time, as of that time."""
    with draft.at(token.at_ms):
        complete(draft, token, WAIT_RESULT)


def _end_node(draft: Draft, ended: Ended) -> None:
    """End a node that ended when it began."""
    token = draft.run.tokens[ended.token.number]
    if token.status is TokenStatus.WAITING_FOR_TIME:
        end_wait(draft, token)
    elif ended.failure is not None:
        fail_node(draft, token, ended.failure)
    else:
        consumed = ended.event.event_id if ended.event else None
        complete(draft, token, ended.result or "null", consumed)


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
                raise AssertionError(decision)
