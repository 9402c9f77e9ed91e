"""Decides what becomes of a graph's run: results of its tasks, time, and what others send.

Pure: (run, what is asked, facts) -> events or a rejection. What comes too late (for a token that
has ended, an attempt that has timed out, a run that is over) is rejected as STALE.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NoReturn

from headwater.processors.evaluations import Evaluator
from headwater.processors.graph.advancing import activate, begin, complete, go_on, waiting_at
from headwater.processors.graph.appliers import begin as begin_run
from headwater.processors.graph.decisions import ActivateFanIn, FailWorkflow
from headwater.processors.graph.definition import NodeRetries
from headwater.processors.graph.dispatching import try_again
from headwater.processors.graph.draft import Draft, planned
from headwater.processors.graph.ends import CannotGoOn, Over, end, fail
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.leases import lease_over
from headwater.processors.graph.state import GraphRun, LiveToken, meeting_place
from headwater.processors.graph.synchronization import decide_timeout
from headwater.processors.graph.tokens import TokenStatus
from headwater.processors.runs.decisions import STALE, Decision
from headwater.processors.runs.durations import milliseconds
from headwater.processors.runs.requests import (
    Request,
    RetryPolicy,
    StepRaised,
    StepReturned,
    StepUnderWay,
    Wake,
)
from headwater.processors.runs.retries import retry_at_ms
from headwater.schemas import failures
from headwater.schemas.history import (
    NO_CAUSE,
    Failure,
    FinishChild,
    GraphStarted,
    HistoryAppended,
    Json,
    RunEvent,
    RunResumed,
    RunStarted,
    TaskUnderWay,
    TokenFailed,
    TokensTimedOut,
)
from headwater.schemas.statuses import RunStatus

_ONCE: Final = RetryPolicy(0, 0, "constant")


def follow(draft: Draft, what: Callable[[Draft], None]) -> list[RunEvent]:
    """Does something in a draft, and what follows from it; gives the events."""
    try:
        what(draft)
        if not draft.run.ended:
            go_on(draft)
    except Over:
        pass
    except CannotGoOn as error:
        with suppress(Over):
            fail(draft, error.failure)
    return draft.events


def started(  # noqa: PLR0913, PLR0917, all that a run begins with
    before: GraphRun | None,
    graph: Graph,
    document: Json,
    first: list[RunEvent],
    who: tuple[str, str],
    now_ms: int,
    evaluator: Evaluator | None = None,
) -> list[RunEvent]:
    """A new run, and all that it does at once.

    Shape:  first are the events that begin it; who is its workflow and its instance.
    """
    opening, *others = first
    assert isinstance(opening, RunStarted)  # noqa: S101, nothing else begins a run
    number = 0 if before is None else before.run_number + 1
    record = HistoryAppended(
        workflow=who[0],
        instance_id=who[1],
        run_number=number,
        sequence=0,
        epoch=0,
        cause=NO_CAUSE,
        at_ms=now_ms,
        events=(opening,),
    )
    draft = Draft(begin_run(before, record), graph, now_ms, evaluator)

    def beginning(draft: Draft) -> None:
        draft.emit(*others)
        if opening.kept is None:
            draft.emit(GraphStarted(document))
            begin(draft)

    return [opening, *follow(draft, beginning)]


# -- what tasks come to


def policy_of(graph: Graph, token: LiveToken) -> RetryPolicy:
    """How a token's task is tried again."""
    retries = graph.node(token.node).retries
    return _ONCE if retries is None else _policy(retries)


@lru_cache
def _policy(retries: NodeRetries) -> RetryPolicy:
    return RetryPolicy(retries.limit, milliseconds(retries.delay), retries.backoff)


def _flying(run: GraphRun, key: str, attempt: int) -> LiveToken | None:
    """The token whose attempt is under way, if it is this one."""
    token = run.token_of(key)
    if token is None or not token.in_flight or attempt != token.attempts + 1:
        return None
    return token


def _returned(draft: Draft, asked: StepReturned) -> Decision:
    token = _flying(draft.run, asked.step.key, asked.attempt)
    if token is None:
        return STALE
    return follow(draft, lambda draft: complete(draft, token, asked.result))


def _raised(draft: Draft, asked: StepRaised) -> Decision:
    token = _flying(draft.run, asked.step.key, asked.attempt)
    if token is None:
        return STALE
    policy = policy_of(draft.graph, token)
    again = retry_at_ms(policy, asked.attempt, draft.now_ms) if asked.retryable else None

    def failing(draft: Draft) -> None:
        draft.emit(TokenFailed(token.number, asked.attempt, asked.failure, again))
        if again is None:
            fail(draft, asked.failure, (token.number,))

    return follow(draft, failing)


def _under_way(draft: Draft, asked: StepUnderWay) -> Decision:
    token = _flying(draft.run, asked.step.key, asked.attempt)
    if token is None or token.status is TokenStatus.EXECUTING:
        return STALE
    return [TaskUnderWay(token.number, asked.attempt)]


# -- time


def _wake(draft: Draft, asked: Wake) -> Decision:
    """What is due, in the order of the times; what others can end waits until its time is over."""
    run = draft.run
    if run.status is RunStatus.PAUSED:
        return STALE
    over_ms = asked.until_ms if asked.complete else asked.until_ms - 1
    late = sorted((at, key) for key, at in run.times.items() if at <= over_ms and _ends(run, key))
    again = [
        int(key)
        for key, at_ms in run.times.items()
        if at_ms <= asked.until_ms and not _ends(run, key)
    ]
    if not late and not again:
        return STALE

    def waking(draft: Draft) -> None:
        for _, key in late:
            if key in draft.run.meetings:
                meeting_timed_out(draft, key)
            elif (token := draft.run.token_of(key)) is not None:
                _token_late(draft, token)
        left = [number for number in again if number in draft.run.tokens]
        if left:
            try_again(draft, left)

    return follow(draft, waking)


def _ends(run: GraphRun, key: str) -> bool:
    """Whether others can end what waits for this time; else it is a retry."""
    token = run.token_of(key)
    return token is None or token.waits_for_others


def _token_late(draft: Draft, token: LiveToken) -> None:
    """A worker, or a child, has taken too long."""
    if token.lease is not None:
        lease_over(draft, token, token.lease, policy_of(draft.graph, token))
    else:
        _child_timed_out(draft, token)


def meeting_timed_out(draft: Draft, key: str) -> None:
    """Decides for those who have waited too long at a meeting point."""
    fork, node = meeting_place(key)
    waiting = waiting_at(draft, fork, node)
    transition = draft.graph.transition(draft.run.meetings[key].transition)
    for decision in draft.hear(decide_timeout(transition, [planned(each) for each in waiting])):
        match decision:
            case ActivateFanIn():
                _go_on_without(draft, fork, node)
            case FailWorkflow():
                numbers = tuple(each.number for each in waiting)
                draft.emit(TokensTimedOut(numbers))
                fail(draft, Failure(decision.name, decision.error), numbers)
            case _:
                pass


def _go_on_without(draft: Draft, fork: str, node: str) -> None:
    """Has those who wait go on; if they cannot, they wait on in the run that fails."""
    try:
        activate(draft, fork, node)
    except CannotGoOn as error:
        draft.take_back()
        fail(draft, error.failure)


def _child_timed_out(draft: Draft, token: LiveToken) -> NoReturn:
    node = draft.graph.node(token.node)
    message = f"Subworkflow failed: {node.subworkflow} took longer than {node.timeout_ms} ms"
    failure = Failure(failures.CHILD_WORKFLOW, message)
    draft.emit(TokenFailed(token.number, 1, failure, timed_out=True))
    fail(draft, failure, (token.number,))


# -- children


def child_finished(draft: Draft, command: FinishChild, sent_at_ms: int) -> Decision:
    """What a workflow came to that a token waits for."""
    run = draft.run
    token = run.token_of(command.key)
    if run.ended or command.run_number != run.run_number or token is None or token.child is None:
        return STALE

    failure = command.failure
    late = token.at_ms is not None and sent_at_ms > token.at_ms
    if failure is None and not late:
        return follow(draft, lambda draft: complete(draft, token, command.output or "null"))

    def failing(draft: Draft) -> None:
        if late or failure is None:
            _child_timed_out(draft, token)
        message = f"Subworkflow failed: {failure.message}"
        of_child = Failure(failures.CHILD_WORKFLOW, message, failure.detail)
        draft.emit(TokenFailed(token.number, 1, of_child))
        fail(draft, of_child, (token.number,))

    return follow(draft, failing)


def resumed(draft: Draft, event: RunResumed) -> Decision:
    """Goes on after a pause."""
    return follow(draft, lambda draft: draft.emit(event))


def ended(draft: Draft, what: Any, reason: str, *, with_children: bool = True) -> list[RunEvent]:  # noqa: ANN401
    """The end of a run."""
    end(draft, what, reason, with_children=with_children)
    return draft.events


DECIDERS: Final[dict[type[Request], Callable[[Draft, Any], Decision]]] = {
    StepReturned: _returned,
    StepRaised: _raised,
    StepUnderWay: _under_way,
    Wake: _wake,
}
