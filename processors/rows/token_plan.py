"""Plan changes of token rows from the events of graphs.

Each event of a token sets its status; the latest status determines when it ended or is retried, and
how a retry of its run restarts it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from headwater.processors.graph.planning import TERMINAL, TokenStatus
from headwater.processors.rows.patches import EventContext, Patches, error_of
from headwater.schemas.history import (
    FanInActivated,
    GraphMigrated,
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
    TransitionsJoined,
    WaitRestarted,
    WaitStarted,
)
from headwater.schemas.workflow_tables import AS_STORED

_WAITING: Final = TokenStatus.WAITING_FOR_SIBLINGS
_NO_ERROR: Final = error_of(None)
_CLEARED: Final = dict.fromkeys(("worker", "lease_until", "next_retry_at", "retry_status"))


def _set(
    patches: Patches,
    context: EventContext,
    numbers: Iterable[int],
    status: TokenStatus,
    **values: Any,  # noqa: ANN401 (columns)
) -> None:
    """Set the status and other columns, and clear the lease and the scheduled retry."""
    ended_at = context.at_ms if status in TERMINAL else None
    changes = {"status": status, **_CLEARED, "completed_at": ended_at, **values}
    patches.change_tokens(context, numbers, changes)


def _created(patches: Patches, context: EventContext, event: TokensCreated) -> None:
    counts = {} if event.transition is None else {event.transition: 1}
    if event.taken:
        counts = {transition.ref: transition.times for transition in event.taken}
    # Only what was taken since the parent: a reader adds its ancestors'.
    iteration_counts = msgspec.json.encode(counts).decode()
    row = context.values(
        id=event.first,
        node_ref=event.node,
        task=event.task,
        subworkflow=event.subworkflow,
        status=TokenStatus.PENDING,
        path_id=event.path,
        parent_token_id=event.parent,
        sibling_group=event.group,
        branch_index=event.branch,
        branch_total=event.total,
        iteration_counts=iteration_counts,
        attempts=0,
        created_at=context.at_ms,
        updated_at=context.at_ms,
    )
    rows = [row]
    if event.count > 1:
        branches = range(event.branch, event.branch + event.count)
        rows = [
            {**row, "id": number, "path_id": f"{event.path}{branch}", "branch_index": branch}
            for number, branch in enumerate(branches, event.first)
        ]
    patches.put_tokens(context, rows)


def _dispatched(patches: Patches, context: EventContext, event: TasksDispatched) -> None:
    for task in event.tasks:
        values: dict[str, Any] = {"attempts": task.attempt}
        if task.input is not None:
            values["input"] = task.input
        if task.job is not None:
            values["idempotency_token"] = task.job
        _set(patches, context, (task.token,), TokenStatus.DISPATCHED, **values)


def _under_way(patches: Patches, context: EventContext, event: TaskUnderWay) -> None:
    _set(patches, context, (event.token,), TokenStatus.EXECUTING)


def _activated(patches: Patches, context: EventContext, event: JobActivated | JobExtended) -> None:
    lease = {"worker": event.worker, "lease_until": event.until_ms}
    _set(patches, context, (event.token,), TokenStatus.EXECUTING, **lease)


def _expired(patches: Patches, context: EventContext, event: LeaseExpired) -> None:
    attempt = {"attempts": event.attempt + 1, **error_of(event.failure)}
    _set(patches, context, (event.token,), TokenStatus.DISPATCHED, **attempt)


def _completed(patches: Patches, context: EventContext, event: TokenCompleted) -> None:
    ended = {"result": event.result, **_NO_ERROR}
    _set(patches, context, (event.token,), TokenStatus.COMPLETED, **ended)
    if event.consumed is not None:
        patches.deliver(context, event.consumed, str(event.token))


def _failed(patches: Patches, context: EventContext, event: TokenFailed) -> None:
    values = error_of(event.failure)
    if event.retry_at_ms is not None:
        status, values["next_retry_at"] = TokenStatus.PENDING, event.retry_at_ms
    else:
        status = TokenStatus.TIMED_OUT if event.timed_out else TokenStatus.FAILED
        values["retry_status"] = None if event.handled else TokenStatus.PENDING
        if event.result is not None:
            values["result"] = event.result
    _set(patches, context, (event.token,), status, **values)
    if event.consumed is not None:
        patches.deliver(context, event.consumed, str(event.token))


def _waits(patches: Patches, context: EventContext, event: WaitStarted) -> None:
    for_time = event.event_type is None
    status = TokenStatus.WAITING_FOR_TIME if for_time else TokenStatus.WAITING_FOR_EVENT
    values = {"wake_at": event.until_ms, "event_type": event.event_type}
    _set(patches, context, (event.token,), status, **values)


def _arrived(patches: Patches, context: EventContext, event: TokenArrived) -> None:
    deadline = {} if event.until_ms is None else {"wake_at": event.until_ms}
    _set(patches, context, (event.token,), _WAITING, **deadline)


def _waits_for_child(patches: Patches, context: EventContext, event: SubworkflowStarted) -> None:
    child: dict[str, Any] = {
        "child_workflow_name": event.child.workflow,
        "child_instance_id": event.child.instance_id,
    }
    if event.until_ms is not None:
        child["wake_at"] = event.until_ms
    _set(patches, context, (event.token,), TokenStatus.WAITING_FOR_SUBWORKFLOW, **child)


def _joined(patches: Patches, context: EventContext, event: FanInActivated) -> None:
    _set(patches, context, (*event.tokens, *event.elsewhere), TokenStatus.COMPLETED)


def _transitions_joined(patches: Patches, context: EventContext, event: TransitionsJoined) -> None:
    _set(patches, context, event.tokens, TokenStatus.COMPLETED)


def _cancelled(patches: Patches, context: EventContext, event: TokensCancelled) -> None:
    for number in event.tokens:
        retry = _retry_status(patches.status_of_token(context, number)) if event.kept else None
        status = TokenStatus.CANCELLED
        _set(patches, context, (number,), status, reason=event.reason, retry_status=retry)


def _retry_status(before: str | None) -> str:
    """Return how a retry of the run restarts a token that it keeps, or lets it wait as before."""
    if before is None:
        return AS_STORED
    return _WAITING if before == _WAITING else TokenStatus.PENDING


def _wait_restarted(patches: Patches, context: EventContext, event: WaitRestarted) -> None:
    _set(patches, context, event.tokens, _WAITING, wake_at=event.until_ms)


def _timed_out(patches: Patches, context: EventContext, event: TokensTimedOut) -> None:
    _set(patches, context, event.tokens, TokenStatus.TIMED_OUT, retry_status=_WAITING)


def _migrated(patches: Patches, context: EventContext, event: GraphMigrated) -> None:
    for moved in event.nodes:
        node = {"node_ref": moved.to, "task": moved.task, "subworkflow": moved.subworkflow}
        patches.leave_node(context, moved.node, moved.tokens)
        patches.change_tokens(context, moved.tokens, node)


#: Planners by event.
TOKEN_PLANNERS: Final[Mapping[type, Callable[[Patches, EventContext, Any], None]]] = {
    TokensCreated: _created,
    TasksDispatched: _dispatched,
    TaskUnderWay: _under_way,
    JobActivated: _activated,
    JobExtended: _activated,
    LeaseExpired: _expired,
    TokenCompleted: _completed,
    TokenFailed: _failed,
    WaitStarted: _waits,
    TokenArrived: _arrived,
    SubworkflowStarted: _waits_for_child,
    FanInActivated: _joined,
    TransitionsJoined: _transitions_joined,
    TokensCancelled: _cancelled,
    WaitRestarted: _wait_restarted,
    TokensTimedOut: _timed_out,
    GraphMigrated: _migrated,
}
