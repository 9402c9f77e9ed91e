"""Plan changes of token rows from the events of graphs, without access to Postgres."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from headwater.processors.graph.planning import TokenStatus
from headwater.projections.workflows.patches import EventContext, Patches
from headwater.projections.workflows.token_rows import TokenRow
from headwater.schemas.history import (
    FanInActivated,
    JobActivated,
    JobExtended,
    LeaseExpired,
    SubworkflowStarted,
    TasksDispatched,
    TaskUnderWay,
    TokenArrived,
    TokenCompleted,
    TokenFailed,
    TokensCancelled,
    TokensCreated,
    TokensTimedOut,
)


def _created(patches: Patches, context: EventContext, event: TokensCreated) -> None:
    counts = {transition.ref: transition.times for transition in event.taken}
    iteration_counts = msgspec.json.encode(counts).decode()
    for index in range(event.count):
        branch = event.branch + index
        row = TokenRow(
            workflow_name=context.workflow_name,
            instance_id=context.instance_id,
            run_number=context.run_number,
            id=event.first + index,
            node_ref=event.node,
            task=event.task,
            subworkflow=event.subworkflow,
            status=TokenStatus.PENDING,
            path_id=event.path if event.count == 1 else f"{event.path}{branch}",
            parent_token_id=event.parent,
            sibling_group=event.group,
            branch_index=branch,
            branch_total=event.total,
            iteration_counts=iteration_counts,
            attempts=0,
            created_at_ms=context.at_ms,
            updated_at_ms=context.at_ms,
            offset=context.offset,
        )
        patches.put_token(context, row)


def _dispatched(patches: Patches, context: EventContext, event: TasksDispatched) -> None:
    tokens = patches.tokens(context, (task.token for task in event.tasks))
    for task, token in zip(event.tasks, tokens, strict=True):
        token.begin_attempt(task.attempt, task.input, context.at_ms)
        if task.job is not None:
            token.idempotency_token = task.job


def _under_way(patches: Patches, context: EventContext, event: TaskUnderWay) -> None:
    for token in patches.tokens(context, (event.token,)):
        token.set_status(TokenStatus.EXECUTING, context.at_ms)


def _activated(patches: Patches, context: EventContext, event: JobActivated | JobExtended) -> None:
    for token in patches.tokens(context, (event.token,)):
        token.lease_to(event.worker, event.until_ms, context.at_ms)


def _expired(patches: Patches, context: EventContext, event: LeaseExpired) -> None:
    for token in patches.tokens(context, (event.token,)):
        token.begin_attempt(event.attempt + 1, None, context.at_ms)
        token.fail(event.failure)


def _completed(patches: Patches, context: EventContext, event: TokenCompleted) -> None:
    for token in patches.tokens(context, (event.token,)):
        token.complete(event.result, context.at_ms)


def _failed(patches: Patches, context: EventContext, event: TokenFailed) -> None:
    for token in patches.tokens(context, (event.token,)):
        if event.retry_at_ms is None:
            ended = TokenStatus.TIMED_OUT if event.timed_out else TokenStatus.FAILED
            token.set_status(ended, context.at_ms, TokenStatus.PENDING)
            token.result = event.result or token.result
        else:
            token.set_status(TokenStatus.PENDING, context.at_ms)
            token.next_retry_at_ms = event.retry_at_ms
        token.fail(event.failure)


def _arrived(patches: Patches, context: EventContext, event: TokenArrived) -> None:
    for token in patches.tokens(context, (event.token,)):
        token.wait(TokenStatus.WAITING_FOR_SIBLINGS, event.until_ms, context.at_ms)


def _waits_for_child(patches: Patches, context: EventContext, event: SubworkflowStarted) -> None:
    for token in patches.tokens(context, (event.token,)):
        token.wait(TokenStatus.WAITING_FOR_SUBWORKFLOW, event.until_ms, context.at_ms)
        token.start(event.child)


def _joined(patches: Patches, context: EventContext, event: FanInActivated) -> None:
    for token in patches.tokens(context, event.tokens):
        token.set_status(TokenStatus.COMPLETED, context.at_ms)


def _cancelled(patches: Patches, context: EventContext, event: TokensCancelled) -> None:
    for token in patches.tokens(context, event.tokens):
        token.cancel(event.reason, context.at_ms, kept=event.kept)


def _timed_out(patches: Patches, context: EventContext, event: TokensTimedOut) -> None:
    for token in patches.tokens(context, event.tokens):
        token.set_status(TokenStatus.TIMED_OUT, context.at_ms, TokenStatus.WAITING_FOR_SIBLINGS)


#: Planners by event.
TOKEN_PLANNERS: Final[dict[type, Callable[[Patches, EventContext, Any], None]]] = {
    TokensCreated: _created,
    TasksDispatched: _dispatched,
    TaskUnderWay: _under_way,
    JobActivated: _activated,
    JobExtended: _activated,
    LeaseExpired: _expired,
    TokenCompleted: _completed,
    TokenFailed: _failed,
    TokenArrived: _arrived,
    SubworkflowStarted: _waits_for_child,
    FanInActivated: _joined,
    TokensCancelled: _cancelled,
    TokensTimedOut: _timed_out,
}
