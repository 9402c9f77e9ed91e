"""Decide what becomes of one token: its dispatch, its end, and the end of the child it waits for.

Where the token continues is decided in `routing`, and what happens at joins in `joins`.
"""

from collections.abc import Iterable
from typing import Any

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.context import Scope
from headwater.processors.graph.data_flow import map_input
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.planning import (
    CancelTokens,
    CompleteToken,
    Decision,
    DispatchToken,
    FailFromSubworkflow,
    FailWorkflow,
    MarkWaiting,
    MarkWaitingForSubworkflow,
    Planned,
    ResumeFromSubworkflow,
    TimeoutSubworkflow,
    Token,
    TokenStatus,
    Trace,
    UpdateTokenStatus,
    failed,
)


def decide_dispatch(
    graph: Graph, token_id: str, node_ref: str, scope: Scope, child: str
) -> Planned:
    """Decide how the node of a token begins.

    Args:
        graph: The compiled graph.
        token_id: The token.
        node_ref: Its node.
        scope: Values of its expressions.
        child: Id of the child, if the node starts a workflow.

    Returns:
        One decision: the dispatch of a task; a wait for a child, a time or an event; or a failure
            of the mapping.
    """
    node = graph.node(node_ref)
    if node.wait is not None or node.event is not None:
        return Planned((MarkWaiting(token_id=token_id),))
    mapped = map_input(graph, node_ref, scope)
    if isinstance(mapped, EvaluationProblem):
        return failed(mapped.message)
    decision: Decision
    if node.subworkflow is None:
        decision = DispatchToken(token_id=token_id, task=node.task or "", input=mapped)
    else:
        decision = MarkWaitingForSubworkflow(
            token_id=token_id,
            subworkflow_run_id=child,
            workflow=node.subworkflow,
            input=mapped,
            timeout_ms=node.timeout_ms,
        )
    return Planned((decision,))


def decide_next_attempt(token_id: str, task: str, attempt: int) -> Planned:
    """Decide the next attempt of a task whose retry is due."""
    return Planned((DispatchToken(token_id=token_id, task=task, attempt=attempt),))


def decide_result(token_id: str) -> Planned:
    """Decide the end of a token whose task has its result."""
    return Planned((CompleteToken(token_id=token_id),))


def decide_failure(token: Token, name: str, *, timed_out: bool = False) -> Planned:
    """Decide the end of a token whose node has failed for good, with an error of this name."""
    status = TokenStatus.TIMED_OUT if timed_out else TokenStatus.FAILED
    decision = UpdateTokenStatus(token_id=token.id, status=status)
    return Planned((decision,), (_trace("task.failed", token, error=name),))


def decide_run_failure(error: str, name: str) -> Planned:
    """Decide the end of a run with an error that nothing in it handles."""
    trace = Trace("decision.lifecycle.fail", payload={"error": name})
    return Planned((FailWorkflow(error=error, name=name),), (trace,))


def decide_subworkflow_result(token: Token, output: Any, error: str | None) -> Planned:  # noqa: ANN401, any JSON value
    """Decide about a token whose child has ended, with an output or an error."""
    decision: Decision = ResumeFromSubworkflow(token_id=token.id, output=output)
    if error is not None:
        decision = FailFromSubworkflow(token_id=token.id, error=error)
    return Planned((decision,), (_trace("subworkflow.result", token),))


def decide_subworkflow_timeout(
    token: Token, child: str, *, timeout_ms: int, elapsed_ms: int
) -> Planned:
    """Decide about a token whose child has run for some time.

    Returns:
        One decision once its time is over; nothing before.
    """
    traces = (_trace("subworkflow.timeout", token, timeout_ms=timeout_ms, elapsed_ms=elapsed_ms),)
    if elapsed_ms < timeout_ms:
        return Planned((), traces)
    decision = TimeoutSubworkflow(
        token_id=token.id, subworkflow_run_id=child, timeout_ms=timeout_ms, elapsed_ms=elapsed_ms
    )
    return Planned((decision,), traces)


def decide_cancel(token_ids: Iterable[str], reason: str) -> Planned:
    """Decide about the live tokens of a run that ends: they are canceled together."""
    cancelled = tuple(token_ids)
    trace = Trace("decision.lifecycle.cancel", payload={"tokens": len(cancelled)})
    decisions = (CancelTokens(token_ids=cancelled, reason=reason),) if cancelled else ()
    return Planned(decisions, (trace,))


def _trace(what: str, token: Token, **payload: object) -> Trace:
    return Trace(f"decision.{what}", token.id, token.node_ref, payload)
