"""Decide what follows task results, timeouts, expired leases and messages from others.

Pure functions: (run, request, facts) -> events or a rejection. A request that comes too late (for a
token or run that has ended, or an attempt that has timed out) is rejected as STALE.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from headwater.processors.evaluations import Evaluator
from headwater.processors.graph.advancing import advance, begin, complete, fail_node
from headwater.processors.graph.appliers import begin as begin_run
from headwater.processors.graph.definition import NodeRetries
from headwater.processors.graph.dispatching import dispatch_retries
from headwater.processors.graph.draft import CannotContinue, Draft, RunOver, end, fail
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.joining import activate, evaluate_joins, restart_waits, waiting_at
from headwater.processors.graph.joins import decide_timeout
from headwater.processors.graph.planning import ActivateFanIn, FailWorkflow, TokenStatus
from headwater.processors.graph.state import GraphRun, Lease, LiveToken, parse_meeting_key
from headwater.processors.runs.decisions import (
    STALE,
    Decision,
    Request,
    RetryPolicy,
    StepRaised,
    StepReturned,
    StepUnderWay,
    Wake,
    retry_at_ms,
)
from headwater.processors.runs.durations import milliseconds
from headwater.schemas import failures
from headwater.schemas.failures import LEASE_EXPIRED, STEP_TIMEOUT
from headwater.schemas.history import (
    NO_CAUSE,
    Failure,
    FinishChild,
    GraphStarted,
    HistoryAppended,
    Json,
    LeaseExpired,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunResumed,
    RunStarted,
    RunTerminated,
    TaskUnderWay,
    TokenFailed,
    TokensTimedOut,
)
from headwater.schemas.statuses import RunStatus

#: Expired leases of one token before its run fails. Deployments and restarts do not stop the
#: workers of one job this often, and a job that crashes its workers stops at this number.
LEASES_LOST_MAX: Final = 10


def expire_lease(draft: Draft, token: LiveToken, lease: Lease, policy: RetryPolicy) -> None:
    """Take a job from its worker when its time is over.

    An expired lease states nothing about the job: its worker may have been stopped or disconnected.
    So the next attempt is available at once, and does not use up the node's retries. But a job can
    also crash its workers one after the other; after a number of expired leases its run fails.

    Raises:
        RunOver: The run fails with it.
    """
    attempt = token.attempts + 1
    if lease.ends_at_ms == lease.until_ms:
        failure = _timeout_failure(draft, token, lease)
        retry_ms = retry_at_ms(policy, attempt - token.lost, draft.now_ms)
        if retry_ms is None:
            fail_node(draft, token, failure, timed_out=True)
        else:
            draft.emit(TokenFailed(token.number, attempt, failure, retry_ms, timed_out=True))
        return
    lost = token.lost + 1
    failure = Failure(
        LEASE_EXPIRED,
        f'expected "{lease.worker}" to end the job of node "{token.node}", or to extend its lease, '
        f"found attempt {attempt} still with it when that ran out, {lost} of {LEASES_LOST_MAX} "
        "times",
    )
    if lost < LEASES_LOST_MAX:
        draft.emit(LeaseExpired(token.number, attempt, failure))
        return
    fail_node(draft, token, failure, timed_out=True)


def _timeout_failure(draft: Draft, token: LiveToken, lease: Lease) -> Failure:
    limit_ms = draft.graph.node(token.node).timeout_ms
    return Failure(
        STEP_TIMEOUT,
        f'expected the job of node "{token.node}" to end within {limit_ms} ms, found it still with '
        f'"{lease.worker}" in attempt {token.attempts + 1}',
    )


# -- actions

_ONCE: Final = RetryPolicy(0, 0, "constant")


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


def start_events(  # noqa: PLR0913, PLR0917, everything that a run starts with
    before: GraphRun | None,
    graph: Graph,
    document: Json,
    opening_events: list[RunEvent],
    instance: tuple[str, str],
    now_ms: int,
    evaluator: Evaluator | None = None,
) -> list[RunEvent]:
    """Return the events of a new run, up to where it first waits.

    Args:
        before: The previous run of the instance.
        graph: The compiled definition.
        document: The definition as JSON text.
        opening_events: RunStarted and the events that must follow it.
        instance: Workflow name and instance id.
        now_ms: Current time, Unix milliseconds.
        evaluator: Evaluates expressions and schemas within limits.
    """
    opening, *others = opening_events
    assert isinstance(opening, RunStarted)  # noqa: S101, nothing else begins a run
    number = 0 if before is None else before.run_number + 1
    record = HistoryAppended(
        workflow=instance[0],
        instance_id=instance[1],
        run_number=number,
        sequence=0,
        epoch=0,
        cause=NO_CAUSE,
        at_ms=now_ms,
        events=(opening,),
    )
    draft = Draft(begin_run(before, record), graph, now_ms, evaluator)

    def start(draft: Draft) -> None:
        draft.emit(*others)
        if opening.kept is None:
            draft.emit(GraphStarted(document))
            begin(draft)
        else:
            continue_failed(draft)

    return [opening, *act_and_advance(draft, start)]


def continue_failed(draft: Draft) -> None:
    """Continue a failed run: its joins have their full time again, and are evaluated again.

    Some can be met, since the outputs of branches were changed, or can no longer be.
    """
    restart_waits(draft)
    for name in list(draft.run.forks):
        evaluate_joins(draft, name)


# -- task results


def policy_of(graph: Graph, token: LiveToken) -> RetryPolicy:
    """Return the retry policy of a token's task."""
    retries = graph.node(token.node).retries
    return _ONCE if retries is None else _policy(retries)


@lru_cache
def _policy(retries: NodeRetries) -> RetryPolicy:
    return RetryPolicy(retries.limit, milliseconds(retries.delay), retries.backoff)


def _token_in_flight(run: GraphRun, key: str, attempt: int) -> LiveToken | None:
    """Return the token with this key if this attempt of it is in flight."""
    token = run.token_of(key)
    if token is None or not token.in_flight or attempt != token.attempts + 1:
        return None
    return token


def _decide_returned(draft: Draft, request: StepReturned) -> Decision:
    token = _token_in_flight(draft.run, request.step.key, request.attempt)
    if token is None:
        return STALE
    return act_and_advance(draft, lambda draft: complete(draft, token, request.result))


def _decide_raised(draft: Draft, request: StepRaised) -> Decision:
    token = _token_in_flight(draft.run, request.step.key, request.attempt)
    if token is None:
        return STALE
    policy = policy_of(draft.graph, token)
    retry_ms = retry_at_ms(policy, request.attempt, draft.now_ms) if request.retryable else None

    def record_failure(draft: Draft) -> None:
        if retry_ms is None:
            fail_node(draft, token, request.failure)
        else:
            draft.emit(TokenFailed(token.number, request.attempt, request.failure, retry_ms))

    return act_and_advance(draft, record_failure)


def _decide_under_way(draft: Draft, request: StepUnderWay) -> Decision:
    token = _token_in_flight(draft.run, request.step.key, request.attempt)
    if token is None or token.status is TokenStatus.EXECUTING:
        return STALE
    return [TaskUnderWay(token.number, request.attempt)]


# -- time


def _decide_wake(draft: Draft, request: Wake) -> Decision:
    """Handle what is due, in order of time. What others can end is due only after its time."""
    run = draft.run
    if run.status is RunStatus.PAUSED:
        return STALE
    expired_until_ms = request.until_ms if request.complete else request.until_ms - 1
    expired = sorted(
        (at, key)
        for key, at in run.times.items()
        if at <= expired_until_ms and _others_can_end(run, key)
    )
    retries = [
        int(key)
        for key, at_ms in run.times.items()
        if at_ms <= request.until_ms and not _others_can_end(run, key)
    ]
    if not expired and not retries:
        return STALE

    def handle_due(draft: Draft) -> None:
        for _, key in expired:
            if key in draft.run.meetings:
                meeting_timed_out(draft, key)
            elif (token := draft.run.token_of(key)) is not None:
                _time_out_token(draft, token)
        live_retries = [number for number in retries if number in draft.run.tokens]
        if live_retries:
            dispatch_retries(draft, live_retries)

    return act_and_advance(draft, handle_due)


def _others_can_end(run: GraphRun, key: str) -> bool:
    """Whether another party can end the wait with this key; otherwise it is a retry."""
    token = run.token_of(key)
    return token is None or token.waits_for_others


def _time_out_token(draft: Draft, token: LiveToken) -> None:
    """Handle a worker or a child that took too long."""
    if token.lease is not None:
        expire_lease(draft, token, token.lease, policy_of(draft.graph, token))
    else:
        _child_timed_out(draft, token)


def meeting_timed_out(draft: Draft, key: str) -> None:
    """Decide for the tokens with a timed-out wait at a join."""
    fork, node = parse_meeting_key(key)
    waiting = waiting_at(draft, fork, node)
    transition = draft.graph.transition(draft.run.meetings[key].transition)
    for decision in draft.execute(
        decide_timeout(transition, [draft.planned(token) for token in waiting])
    ):
        match decision:
            case ActivateFanIn():
                activate(draft, fork, node)
            case FailWorkflow():
                numbers = tuple(token.number for token in waiting)
                draft.emit(TokensTimedOut(numbers))
                fail(draft, Failure(decision.name, decision.error), numbers)
            case _:
                pass


def _child_timed_out(draft: Draft, token: LiveToken) -> None:
    node = draft.graph.node(token.node)
    message = f"Subworkflow failed: {node.subworkflow} took longer than {node.timeout_ms} ms"
    failure = Failure(failures.CHILD_WORKFLOW, message)
    fail_node(draft, token, failure, timed_out=True)


# -- children


def decide_child_finished(draft: Draft, command: FinishChild, sent_at_ms: int) -> Decision:
    """Decide what the end of a child workflow means for the token that waits for it."""
    run = draft.run
    token = run.token_of(command.key)
    if run.ended or command.run_number != run.run_number or token is None or token.child is None:
        return STALE

    failure = command.failure
    is_late = token.at_ms is not None and sent_at_ms > token.at_ms
    if failure is None and not is_late:
        return act_and_advance(
            draft, lambda draft: complete(draft, token, command.output or "null")
        )

    def record_failure(draft: Draft) -> None:
        if is_late or failure is None:
            _child_timed_out(draft, token)
            return
        message = f"Subworkflow failed: {failure.message}"
        fail_node(draft, token, Failure(failures.CHILD_WORKFLOW, message, failure.detail))

    return act_and_advance(draft, record_failure)


def resume_events(draft: Draft, event: RunResumed) -> Decision:
    """Continue after a pause."""
    return act_and_advance(draft, lambda draft: draft.emit(event))


def end_events(
    draft: Draft,
    ended: RunCompleted | RunErrored | RunTerminated,
    reason: str,
    *,
    with_children: bool = True,
) -> list[RunEvent]:
    """Return the events that end a run."""
    end(draft, ended, reason, with_children=with_children)
    return draft.events


DECIDERS: Final[dict[type[Request], Callable[[Draft, Any], Decision]]] = {
    StepReturned: _decide_returned,
    StepRaised: _decide_raised,
    StepUnderWay: _decide_under_way,
    Wake: _decide_wake,
}
