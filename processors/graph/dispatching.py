"""Dispatch tokens: tasks to a host, and child workflows that a token waits for.

The number of attempts in flight per run is limited, however wide it fans out; other tokens wait
until attempts end. The events of one decision stay small enough for a record.
"""

from hashlib import sha256
from typing import Final

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.data_flow import map_input
from headwater.processors.graph.definition import Node
from headwater.processors.graph.draft import Draft, fail, text_of
from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import GraphRun, LiveToken
from headwater.processors.runs.outbox import queue
from headwater.schemas.history import (
    Child,
    Failure,
    Parent,
    Post,
    StartRun,
    SubworkflowStarted,
    TaskDispatch,
    TasksDispatched,
)
from headwater.schemas.statuses import RunStatus

#: Maximum attempts of one run in flight.
IN_FLIGHT_MAX: Final = 1_000
#: Tokens that are dispatched together, in one event and message, when more wait than may be
#: in flight.
_TOGETHER: Final = 100
#: Characters of input that one decision dispatches; a single token may exceed it.
_INPUTS_MAX: Final = 1024 * 1024
#: Characters of an instance's id that are the prefix of its children's ids.
_PREFIX_MAX: Final = 60


def dispatch(draft: Draft) -> None:
    """Dispatch waiting tokens, up to the limit of attempts in flight."""
    run = draft.run
    # Jobs may take days, so with jobs in flight every free slot is filled at once.
    full = run.in_flight > IN_FLIGHT_MAX - _TOGETHER and not run.jobs
    if full or run.status is RunStatus.PAUSED:
        return
    tasks: list[TaskDispatch] = []
    size = 0
    for number in range(run.undispatched, run.created):
        if run.in_flight + len(tasks) >= IN_FLIGHT_MAX or size > _INPUTS_MAX:
            break
        token = run.tokens.get(number)
        if token is None or token.status is not TokenStatus.PENDING or token.at_ms is not None:
            continue
        text = _input(draft, token)
        size += len(text)
        node = draft.graph.node(token.node)
        if node.subworkflow is None:
            tasks.append(TaskDispatch(number, token.attempts + 1, text, _job(draft, token)))
        else:
            _start_child(draft, token, node, node.subworkflow, text)
    if tasks:
        draft.emit(TasksDispatched(tuple(tasks)))


def _input(draft: Draft, token: LiveToken) -> str:
    mapped = map_input(draft.graph, token.node, draft.scope(token))
    if isinstance(mapped, EvaluationProblem):
        fail(draft, Failure("ExpressionError", mapped.message))
    return text_of(mapped)


def _start_child(draft: Draft, token: LiveToken, node: Node, workflow: str, params: str) -> None:
    run = draft.run
    child = Child(workflow, child_id(run, token.number))
    parent = Parent(run.workflow, run.instance_id, run.run_number, str(token.number))
    post = Post(
        0, child.workflow, child.instance_id, StartRun(params, parent, deployment=run.deployment)
    )
    until_ms = draft.now_ms + node.timeout_ms if node.timeout_ms else None
    draft.emit(*queue(run, [post]), SubworkflowStarted(token.number, child, until_ms))


def child_id(run: GraphRun, token: int) -> str:
    """Return the id of the instance that a token starts: always the same for the same token.

    It is unique among all workflows, and differs from those of an earlier, deleted instance that
    had this instance's id.
    """
    instance_digest = sha256(f"{run.workflow}/{run.instance_id}/{run.seed}".encode()).hexdigest()[
        :16
    ]
    return f"{run.instance_id[:_PREFIX_MAX]}-{instance_digest}-{run.run_number}-{token}"


def dispatch_retries(draft: Draft, numbers: list[int]) -> None:
    """Dispatch the next attempts of tokens with a due retry."""
    tokens = (draft.run.tokens[number] for number in numbers)
    attempts = (
        TaskDispatch(token.number, token.attempts + 1, job=_job(draft, token)) for token in tokens
    )
    draft.emit(TasksDispatched(tuple(attempts)))


def _job(draft: Draft, token: LiveToken) -> str | None:
    """Return the idempotency token of a token's task if it is for external workers."""
    is_external = draft.graph.node(token.node).external
    return idempotency_token(draft.run, token.number) if is_external else None


def idempotency_token(run: GraphRun, token: int) -> str:
    """Return the token with which a task makes repeated requests to other systems idempotent.

    It is the same for all attempts of a token, and in a retry of the run, which keeps its seed. A
    restart has another one.
    """
    name = f"{run.workflow}/{run.instance_id}/{run.seed}/{token}"
    return sha256(name.encode()).hexdigest()[:32]
