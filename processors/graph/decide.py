"""Decide the start and the end of runs, the results of tasks and children, and timers.

Pure functions: (run, request, facts) -> events or a rejection. A request that comes too late (for a
token or run that has ended, or an attempt that has timed out) is rejected as STALE. While a run is
paused, results are held: nothing of it completes, fails or times out.
"""

from collections.abc import Callable
from typing import Any, Final

from headwater.processors.evaluations import Evaluator
from headwater.processors.graph.advancing import (
    act_and_advance,
    begin,
    complete,
    continue_failed,
    fail_attempt,
    fail_node,
)
from headwater.processors.graph.appliers import begin as begin_run
from headwater.processors.graph.draft import Draft, end
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import GraphRun, LiveToken
from headwater.processors.graph.timing import (
    child_timed_out,
    deadline_passed,
    end_waits,
    handle_due,
    has_overdue_waits,
    policy_of,
)
from headwater.processors.runs.decisions import (
    STALE,
    Decision,
    Request,
    StepRaised,
    StepReturned,
    StepUnderWay,
    Wake,
    retry_at_ms,
)
from headwater.schemas.failures import CHILD_WORKFLOW, STEP_TIMEOUT
from headwater.schemas.history import (
    NO_CAUSE,
    Failure,
    FinishChild,
    GraphStarted,
    HistoryAppended,
    Json,
    OutcomeHeld,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunStarted,
    RunTerminated,
    TaskUnderWay,
)

# -- start


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
            begin(draft, GraphStarted(document, graph.definition.timeout_ms))
        else:
            continue_failed(draft)

    return [opening, *act_and_advance(draft, start)]


# -- task results


def _token_in_flight(run: GraphRun, key: str, attempt: int) -> LiveToken | None:
    """Return the token with this key if this attempt of it is in flight."""
    token = run.token_of(key)
    if token is None or not token.in_flight or attempt != token.attempts + 1:
        return None
    return None if token.number in run.held else token


def _decide_returned(draft: Draft, request: StepReturned) -> Decision:
    token = _token_in_flight(draft.run, request.step.key, request.attempt)
    if token is None:
        return STALE
    if draft.run.holds_outcomes:
        return [OutcomeHeld(token.number, draft.now_ms, request.result)]
    return act_and_advance(draft, lambda draft: complete(draft, token, request.result))


def _decide_raised(draft: Draft, request: StepRaised) -> Decision:
    token = _token_in_flight(draft.run, request.step.key, request.attempt)
    if token is None:
        return STALE
    policy, failure = policy_of(draft.graph, token), request.failure
    retry_ms = retry_at_ms(policy, request.attempt, draft.now_ms) if request.retryable else None
    timed_out = failure.name == STEP_TIMEOUT
    if timed_out:
        failure = _attempt_timed_out(draft, token)
    if draft.run.holds_outcomes:
        return [OutcomeHeld(token.number, draft.now_ms, None, failure, retry_ms, timed_out)]
    return act_and_advance(
        draft, lambda draft: fail_attempt(draft, token, failure, retry_ms, timed_out=timed_out)
    )


def _attempt_timed_out(draft: Draft, token: LiveToken) -> Failure:
    limit_ms = draft.graph.node(token.node).timeout_ms
    return Failure(
        STEP_TIMEOUT,
        f'expected the task of node "{token.node}" to end within {limit_ms} ms, found it still '
        f"running in attempt {token.attempts + 1}",
    )


def _decide_under_way(draft: Draft, request: StepUnderWay) -> Decision:
    token = _token_in_flight(draft.run, request.step.key, request.attempt)
    if token is None or token.status is TokenStatus.EXECUTING:
        return STALE
    return [TaskUnderWay(token.number, request.attempt)]


def _decide_wake(draft: Draft, request: Wake) -> Decision:
    if draft.run.is_halted:
        return STALE
    until_ms, complete = request.until_ms, request.complete
    events = act_and_advance(draft, lambda draft: handle_due(draft, until_ms, complete=complete))
    return events or STALE


# -- children


def decide_child_finished(draft: Draft, command: FinishChild, sent_at_ms: int) -> Decision:
    """Decide what the end of a child workflow means for the token that waits for it."""
    run = draft.run
    token = run.token_of(command.key)
    if run.ended or command.run_number != run.run_number or token is None or token.child is None:
        return STALE
    if token.number in run.held:
        return STALE
    failure, timed_out = command.failure, False
    if failure is not None:
        message = f"Subworkflow failed: {failure.message}"
        failure = Failure(CHILD_WORKFLOW, message, failure.detail)
    if token.at_ms is not None and sent_at_ms > token.at_ms:
        failure, timed_out = child_timed_out(draft, token), True
    output = command.output or "null"
    if run.holds_outcomes or has_overdue_waits(draft, min(sent_at_ms, draft.now_ms)):
        at_ms = min(sent_at_ms, draft.now_ms if token.at_ms is None else token.at_ms)
        result = output if failure is None else None
        return [OutcomeHeld(token.number, at_ms, result, failure, None, timed_out)]

    def end(draft: Draft) -> None:
        end_waits(draft, min(sent_at_ms, draft.now_ms))
        if token.number not in draft.run.tokens:
            return
        if timed_out:
            deadline_passed(draft, command.key)
        elif failure is not None:
            fail_node(draft, token, failure)
        else:
            complete(draft, token, output)

    return act_and_advance(draft, end)


# -- events and the end


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
