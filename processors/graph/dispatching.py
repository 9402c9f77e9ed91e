"""Which tokens begin their work: tasks for a host, and workflows that a token waits for.

So many attempts of a run are under way at most, however wide it fans out: the others wait for some
to end. What one decision begins stays so small that its record fits.
"""

from hashlib import sha256
from typing import Final

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.definition import Node
from headwater.processors.graph.draft import Draft, text_of
from headwater.processors.graph.ends import fail
from headwater.processors.graph.mappings import map_input
from headwater.processors.graph.state import GraphRun, LiveToken
from headwater.processors.graph.tokens import TokenStatus
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

#: Attempts of one run that are under way at once.
IN_FLIGHT_MAX: Final = 1_000
#: Where more wait than there is room for, so many begin together, by one event and message.
_TOGETHER: Final = 100
#: Characters of input that one decision dispatches, but for that of a single token.
_INPUTS_MAX: Final = 1024 * 1024
#: Characters of an instance's id that its children's ids begin with.
_PREFIX_MAX: Final = 60


def dispatch(draft: Draft) -> None:
    """Begins what waits for its dispatch, as far as there is room."""
    run = draft.run
    # Jobs may take days: beside them each place that is free is taken at once.
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
            _start(draft, token, node, node.subworkflow, text)
    if tasks:
        draft.emit(TasksDispatched(tuple(tasks)))


def _input(draft: Draft, token: LiveToken) -> str:
    found = map_input(draft.graph, token.node, draft.scope(token))
    if isinstance(found, EvaluationProblem):
        fail(draft, Failure("ExpressionError", found.message))
    return text_of(found)


def _start(draft: Draft, token: LiveToken, node: Node, workflow: str, params: str) -> None:
    run = draft.run
    child = Child(workflow, child_id(run, token.number))
    me = Parent(run.workflow, run.instance_id, run.run_number, str(token.number))
    post = Post(
        0, child.workflow, child.instance_id, StartRun(params, me, deployment=run.deployment)
    )
    until_ms = draft.now_ms + node.timeout_ms if node.timeout_ms else None
    draft.emit(*queue(run, [post]), SubworkflowStarted(token.number, child, until_ms))


def child_id(run: GraphRun, token: int) -> str:
    """The id of the instance that a token starts: the same whenever it is decided.

    Shape:  no other instance has a child of that id, of whatever workflow it is, nor has one that
            had its id before and was deleted.
    """
    whose = sha256(f"{run.workflow}/{run.instance_id}/{run.seed}".encode()).hexdigest()[:16]
    return f"{run.instance_id[:_PREFIX_MAX]}-{whose}-{run.run_number}-{token}"


def try_again(draft: Draft, numbers: list[int]) -> None:
    """Begins the next attempts of tokens whose time has come."""
    tokens = [draft.run.tokens[each] for each in numbers]
    attempts = (
        TaskDispatch(each.number, each.attempts + 1, job=_job(draft, each)) for each in tokens
    )
    draft.emit(TasksDispatched(tuple(attempts)))


def _job(draft: Draft, token: LiveToken) -> str | None:
    """The idempotency token of a token's task, if that is for workers outside."""
    is_external = draft.graph.node(token.node).external
    return idempotency_token(draft.run, token.number) if is_external else None


def idempotency_token(run: GraphRun, token: int) -> str:
    """What a task may hand to others so that they do once what it asks for several times.

    Shape:  the same for all attempts of a token, also in a retry of its run, which keeps its seed;
            another one after a restart.
    """
    named = f"{run.workflow}/{run.instance_id}/{run.seed}/{token}"
    return sha256(named.encode()).hexdigest()[:32]
