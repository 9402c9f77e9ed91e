"""Advance a run after a token has its result: create tokens, wait, join."""

import json

from headwater.processors.graph.context import Scope
from headwater.processors.graph.creating import apply_decisions, create_tokens
from headwater.processors.graph.data_flow import decide_completion, map_output
from headwater.processors.graph.definition import Transition
from headwater.processors.graph.dispatching import dispatch
from headwater.processors.graph.draft import (
    CannotContinue,
    Draft,
    end,
    fail,
    text_of,
)
from headwater.processors.graph.joining import (
    activate_empty_join,
    arrive,
    arrive_again,
    evaluate,
    evaluate_joins,
    fail_branch,
)
from headwater.processors.graph.planning import (
    ActivateFanIn,
    CompleteWorkflow,
    FailWorkflow,
)
from headwater.processors.graph.routing import decide_routing, decide_start, onward
from headwater.processors.graph.state import LiveToken
from headwater.schemas.history import (
    Failure,
    Json,
    RunCompleted,
    RunSuspended,
    TokenCompleted,
    TokenFailed,
)
from headwater.schemas.statuses import RunStatus


def begin(draft: Draft) -> None:
    """Create the first token of a run."""
    start = draft.execute(decide_start(draft.graph, draft.run.input))
    create_tokens(draft, apply_decisions(draft, None, start))


def complete(draft: Draft, token: LiveToken, result: Json) -> None:
    """Record the result of a token and create the tokens that follow.

    If the run cannot continue with the result, only a failure of the token is recorded: a retry of
    the run runs its task again.
    """
    attempt = token.attempts + 1
    try:
        draft.emit(TokenCompleted(token.number, attempt, result))
        outputs = map_output(
            draft.graph, draft.planned(token), draft.scope(token), json.loads(result)
        )
        apply_decisions(draft, token, draft.execute(outputs))
        route(draft, token)
    except CannotContinue as error:
        draft.reset()
        draft.emit(TokenFailed(token.number, attempt, error.failure, result=result))
        fail(draft, error.failure, (token.number,))


def fail_node(draft: Draft, token: LiveToken, failure: Failure, *, timed_out: bool = False) -> None:
    """Record that a node has failed for good. The run fails unless its branch may fail.

    If the run fails, a retry of it runs the node again.

    Raises:
        RunOver: The run fails.
    """
    attempt, error = token.attempts + 1, failure
    try:
        draft.emit(TokenFailed(token.number, attempt, failure, timed_out=timed_out, handled=True))
        if fail_branch(draft, token, failure):
            return
    except CannotContinue as cannot_continue:
        error = cannot_continue.failure
    draft.reset()
    draft.emit(TokenFailed(token.number, attempt, failure, timed_out=timed_out))
    fail(draft, error, (token.number,))


def route(draft: Draft, token: LiveToken) -> None:
    """Create the tokens that follow a completed token.

    Raises:
        CannotContinue: An expression failed, or branches can no longer join.
    """
    routed = draft.execute(
        decide_routing(draft.graph, draft.planned(token), draft.scope(token), draft.fork_of)
    )
    created = create_tokens(draft, apply_decisions(draft, token, routed), token)
    for decision in routed:
        if isinstance(decision, ActivateFanIn):
            activate_empty_join(draft, token, decision)
    arrive(draft, created)
    evaluate(draft, token)
    # A fork that has just begun may be over already: all its branches have joined.
    for name in dict.fromkeys(new_token.fork for new_token in created):
        evaluate_joins(draft, name)


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
    evaluate(draft, token)
    for name in dict.fromkeys(new_token.fork for new_token in created):
        evaluate_joins(draft, name)


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
