"""Dispatch tokens: begin tasks at a host or as jobs, child workflows, waits for times and events.

The attempts of a run in flight are limited, however wide it fans out, and so are its open jobs, by
a limit of their own: jobs may take days. The events of one decision stay small enough for a
record; what it leaves is dispatched by the next decision, which follows at once.
"""

import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.definition import AwaitedEvent, Node, Wait
from headwater.processors.graph.draft import Draft, text_of
from headwater.processors.graph.joining import may_fail
from headwater.processors.graph.outcomes import decide_dispatch, decide_next_attempt
from headwater.processors.graph.planning import (
    EXPRESSION_ERROR,
    DispatchToken,
    FailWorkflow,
    MarkWaiting,
    MarkWaitingForSubworkflow,
)
from headwater.processors.graph.state import IN_FLIGHT_MAX, JOBS_MAX, GraphRun, LiveToken
from headwater.processors.input_texts import LATEST_MS, read_moment, rfc3339
from headwater.processors.runs.outbox import queue, start_child
from headwater.processors.runs.state import Received
from headwater.schemas.history import (
    Child,
    Failure,
    Json,
    SubworkflowStarted,
    TaskDispatch,
    TasksDispatched,
    WaitStarted,
)

#: Characters of inputs and events that one decision dispatches; a single one may exceed it.
_SIZE_MAX: Final = 1024 * 1024
#: What the start of a wait or a child counts towards it: it is an event of its own.
_START_SIZE: Final = 100
#: Nodes that end at once, in one decision: each has consequences of its own.
ENDED_MAX: Final = 100
#: Characters of an instance's id that are the prefix of its children's ids.
_PREFIX_MAX: Final = 60
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Ended(NamedTuple):
    """How a node has ended at once.

    Attributes:
        result: Its result, JSON text; of a failed node None.
        failure: The error of a failed node.
        event: The event that ended its wait.
    """

    token: LiveToken
    result: Json | None = None
    failure: Failure | None = None
    event: Received | None = None


def dispatch(draft: Draft) -> Ended | None:
    """Dispatch waiting tokens, up to the limits of attempts in flight and of one decision.

    Returns:
        The first token with a node that has ended at once: its wait is over, the event was there
            before, or the node failed. The caller handles it and calls again. None if there is
            nothing left to do now.
    """
    run = draft.run
    if run.holds_outcomes or draft.ended_nodes >= ENDED_MAX:
        return None
    tasks: list[TaskDispatch] = []
    ended: Ended | None = None
    plans = len(draft.plans)
    if run.may_dispatch_tasks:
        ended = _begin_nodes(draft, tasks)
    if ended is None and run.may_dispatch_jobs:
        ended = _begin_jobs(draft, tasks)
    fails = ended is not None and ended.failure is not None
    if fails and ended and not _survives(draft, ended.token):
        # The run fails: its other tasks must not begin.
        tasks.clear()
        draft.drop_decisions(plans, DispatchToken)
    if tasks:
        draft.emit(TasksDispatched(tuple(tasks)))
    draft.ended_nodes += ended is not None
    return ended


def _survives(draft: Draft, token: LiveToken) -> bool:
    """Whether the run may continue after the node of a token has failed."""
    return bool(draft.graph.error_tiers(token.node)) or may_fail(draft, token)


def _begin_nodes(draft: Draft, tasks: list[TaskDispatch]) -> Ended | None:
    """Begin the nodes of tokens that are not jobs, and add to `tasks`."""
    run = draft.run
    most = IN_FLIGHT_MAX - (run.in_flight - run.jobs)
    for number in range(run.undispatched, run.created):
        if len(tasks) >= most or draft.dispatched_size > _SIZE_MAX:
            break
        token = run.tokens.get(number)
        if token is None or token.external or not token.is_undispatched:
            continue
        ended = _begin_node(draft, token, tasks)
        if ended is not None:
            return ended
    return None


def _begin_jobs(draft: Draft, tasks: list[TaskDispatch]) -> Ended | None:
    """Add the jobs of tokens to `tasks`."""
    run = draft.run
    most = JOBS_MAX - run.jobs + len(tasks)
    for number in range(run.undispatched_job, run.created):
        if len(tasks) >= most or draft.dispatched_size > _SIZE_MAX:
            break
        token = run.tokens.get(number)
        if token is None or not token.external or not token.is_undispatched:
            continue
        ended = _begin_node(draft, token, tasks)
        if ended is not None:
            return ended
    return None


def _begin_node(draft: Draft, token: LiveToken, tasks: list[TaskDispatch]) -> Ended | None:
    """Begin the node of a token: add its task to `tasks`, or let it wait."""
    graph, number, ended = draft.graph, token.number, None
    node, plans = graph.node(token.node), len(draft.plans)
    child = child_id(draft.run, number) if node.subworkflow else ""
    plan = decide_dispatch(graph, str(number), token.node, draft.scope(token), child)
    for decision in draft.execute(plan):
        match decision:
            case DispatchToken():
                text, attempt = _input(draft, decision.input), token.attempts + 1
                tasks.append(TaskDispatch(number, attempt, text, _job(draft, token)))
            case MarkWaitingForSubworkflow():
                ended = _begin_child(draft, token, decision)
            case MarkWaiting():
                ended = _begin_wait(draft, token, node)
            case FailWorkflow():
                ended = Ended(token, failure=Failure(decision.name, decision.error))
            case _:
                raise AssertionError(decision)
    if ended is not None and ended.failure is not None:
        draft.drop_decisions(plans)
    return ended


def _input(draft: Draft, mapped: Any) -> Json:  # noqa: ANN401, any JSON value
    text = text_of(mapped)
    draft.dispatched_size += len(text)
    return text


# -- nodes that wait


def _begin_wait(draft: Draft, token: LiveToken, node: Node) -> Ended | None:
    """Let a token wait for a time or an event."""
    draft.dispatched_size += _START_SIZE
    if node.event is not None:
        return _await_event(draft, token, node.event)
    until_ms = draft.now_ms if node.wait is None else _end_of_wait_ms(draft, token, node.wait)
    if isinstance(until_ms, Failure):
        return Ended(token, failure=until_ms)
    draft.emit(WaitStarted(token.number, until_ms))
    return Ended(token, WAIT_RESULT) if until_ms <= draft.now_ms else None


#: Result of a node that waited for a time.
WAIT_RESULT: Final = "{}"


def _end_of_wait_ms(draft: Draft, token: LiveToken, wait: Wait) -> int | Failure:
    if wait.duration_ms is not None:
        return draft.now_ms + wait.duration_ms
    expression = draft.graph.mappings(token.node).until
    assert expression is not None  # noqa: S101, validated with the definition
    value = draft.scope(token).value(expression)
    location = f"wait.until of {token.node!r}"
    if isinstance(value, EvaluationProblem):
        return Failure(EXPRESSION_ERROR, f"{value.message} ({location})")
    until = read_moment(value) if isinstance(value, str) else None
    if until is None:
        return Failure(
            EXPRESSION_ERROR,
            f"expected the expression `{expression.source}` to give a timestamp or its text as in "
            f"RFC 3339, found {repr(value)[:80]} ({location})",
        )
    until_ms = (until - _EPOCH) // timedelta(milliseconds=1)
    return min(max(draft.now_ms, until_ms), LATEST_MS)


def _await_event(draft: Draft, token: LiveToken, awaited: AwaitedEvent) -> Ended | None:
    until_ms = draft.now_ms + awaited.timeout_ms
    draft.emit(WaitStarted(token.number, until_ms, awaited.type))
    for received in draft.run.mailbox:
        if fits(received, awaited.type, until_ms):
            draft.dispatched_size += len(received.payload)
            return Ended(token, event_json(received), event=received)
    return None


def fits(received: Received, event_type: str | None, until_ms: int | None) -> bool:
    """Whether an event ends a wait: it counts if it was sent until the end of the wait."""
    return received.type == event_type and (until_ms is None or received.sent_at_ms <= until_ms)


def event_json(received: Received) -> Json:
    """Return the result of a node that waited for an event."""
    sent_at = rfc3339(min(max(0, received.sent_at_ms), LATEST_MS))
    # The payload is already JSON text.
    return (
        f'{{"type":{json.dumps(received.type)},"payload":{received.payload},'
        f'"timestamp":"{sent_at}"}}'
    )


def _begin_child(draft: Draft, token: LiveToken, waits: MarkWaitingForSubworkflow) -> Ended | None:
    run, params = draft.run, _input(draft, waits.input)
    draft.dispatched_size += _START_SIZE
    child = Child(waits.workflow, waits.subworkflow_run_id)
    post = start_child(run, child, params, str(token.number))
    if isinstance(post, Failure):
        return Ended(token, failure=post)
    until_ms = draft.now_ms + waits.timeout_ms if waits.timeout_ms else None
    draft.emit(*queue(run, [post]), SubworkflowStarted(token.number, child, until_ms))
    return None


def child_id(run: GraphRun, token: int) -> str:
    """Return the id of the instance that a token starts: always the same for the same token.

    It is unique among all workflows, and differs from those of an earlier, deleted instance that
    had this instance's id.
    """
    instance_digest = sha256(f"{run.workflow}/{run.instance_id}/{run.seed}".encode()).hexdigest()[
        :16
    ]
    return f"{run.instance_id[:_PREFIX_MAX]}-{instance_digest}-{run.run_number}-{token}"


# -- attempts


def dispatch_retries(draft: Draft, numbers: list[int]) -> None:
    """Dispatch the next attempts of tokens with a due retry."""
    tokens = [draft.run.tokens[number] for number in numbers]
    tasks = (draft.graph.node(token.node).task or "" for token in tokens)
    plans = [
        decide_next_attempt(str(token.number), task, token.attempts + 1)
        for token, task in zip(tokens, tasks, strict=True)
    ]
    attempts = tuple(
        TaskDispatch(token.number, decision.attempt, job=_job(draft, token))
        for token, plan in zip(tokens, plans, strict=True)
        for decision in draft.execute(plan)
        if isinstance(decision, DispatchToken)
    )
    draft.emit(TasksDispatched(attempts))


def _job(draft: Draft, token: LiveToken) -> str | None:
    """Return the idempotency token of a token's task if it is for external workers."""
    return idempotency_token(draft.run, token.number) if token.external else None


def idempotency_token(run: GraphRun, token: int) -> str:
    """Return the token with which a task makes repeated requests to other systems idempotent.

    It is the same for all attempts of a token, and in a retry of the run, which keeps its seed. A
    restart has another one.
    """
    name = f"{run.workflow}/{run.instance_id}/{run.seed}/{token}"
    return sha256(name.encode()).hexdigest()[:32]
