"""The rows of tokens, folded in memory: each event changes rows that are there, one by one."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from headwater.schemas.history import (
    Failure,
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
    TransitionsJoined,
    WaitRestarted,
    WaitStarted,
)

Row = dict[str, Any]
Table = dict[tuple[object, ...], Row]

ENDED = ("completed", "failed", "timed_out", "cancelled")
#: Statuses that a retry of the run makes of tokens, and what it takes from them.
NOT_KEPT = (
    *("completed_at", "error_name", "error_message", "error_detail", "next_retry_at"),
    *("result", "reason", "retry_status", "child_workflow_name", "child_instance_id"),
    "event_type",
    *("idempotency_token", "worker", "lease_until"),
)


def tell(table: Table, run: Row, event: object, at: int, offset: int) -> None:
    """Applies an event of a run to the table of tokens."""
    key = tuple(run.values())
    if isinstance(event, TokensCreated):
        for row in _created(event):
            own = {**run, **row, "created_at": at, "updated_at": at, "offset": offset}
            table[*key, row["id"]] = own
        return
    for number, reported in _changes(event, table, key):
        row = table.get((*key, number))
        if row is not None:
            ended = {"completed_at": at if reported["status"] in ENDED else None}
            alone = dict.fromkeys(("next_retry_at", "retry_status", "worker", "lease_until"))
            row.update(updated_at=at, offset=offset, **{**ended, **alone, **reported})


def take_over(table: Table, before: tuple[object, ...], run: Row, at: int, offset: int) -> None:
    """A retry goes on with the tokens of the run before it."""
    for row in [row for key, row in table.items() if key[:3] == before]:
        taken = {**row, **run, "offset": offset}
        again = row["retry_status"]
        if again is not None:
            taken.update(dict.fromkeys(NOT_KEPT), status=again, attempts=0, wake_at=None)
            taken["updated_at"] = at
        table[*run.values(), row["id"]] = taken


def _created(event: TokensCreated) -> Iterator[Row]:
    counts = {item.ref: item.times for item in event.taken}
    if not counts and event.transition is not None:
        counts = {event.transition: 1}
    for branch in range(event.branch, event.branch + event.count):
        yield {
            "id": event.first + branch - event.branch,
            "node_ref": event.node,
            "task": event.task,
            "subworkflow": event.subworkflow,
            "status": "pending",
            "path_id": event.path + (str(branch) if event.count > 1 else ""),
            "parent_token_id": event.parent,
            "sibling_group": event.group,
            "branch_index": branch,
            "branch_total": event.total,
            "iteration_counts": json.dumps(counts, separators=(",", ":"), ensure_ascii=False),
            "attempts": 0,
            "input": None,
            "result": None,
            "wake_at": None,
            **dict.fromkeys(NOT_KEPT),
        }


def _changes(event: object, table: Table, run: tuple[object, ...]) -> Iterable[tuple[int, Row]]:  # noqa: PLR0911, PLR0912, C901, one for each event
    match event:
        case TasksDispatched():
            return [
                (
                    task.token,
                    {"status": "dispatched", "attempts": task.attempt}
                    | ({} if task.input is None else {"input": task.input})
                    | ({} if task.job is None else {"idempotency_token": task.job}),
                )
                for task in event.tasks
            ]
        case TaskUnderWay():
            return [(event.token, {"status": "executing"})]
        case JobActivated() | JobExtended():
            held = {"worker": event.worker, "lease_until": event.until_ms}
            return [(event.token, {"status": "executing", **held})]
        case LeaseExpired():
            anew = {"status": "dispatched", "attempts": event.attempt + 1}
            return [(event.token, anew | error_of(event.failure))]
        case TokenCompleted():
            return [
                (event.token, {"status": "completed", "result": event.result, **error_of(None)})
            ]
        case TokenFailed():
            return [(event.token, _failed(event))]
        case WaitStarted():
            for_time = event.event_type is None
            status = "waiting_for_time" if for_time else "waiting_for_event"
            waits = {"wake_at": event.until_ms, "event_type": event.event_type}
            return [(event.token, {"status": status, **waits})]
        case TokenArrived():
            waits = {"status": "waiting_for_siblings"}
            return [(event.token, waits | _until(event.until_ms))]
        case SubworkflowStarted():
            child = {
                "child_workflow_name": event.child.workflow,
                "child_instance_id": event.child.instance_id,
            }
            waits = {"status": "waiting_for_subworkflow"}
            return [(event.token, waits | child | _until(event.until_ms))]
        case FanInActivated():
            joined = (*event.tokens, *event.elsewhere)
            return [(number, {"status": "completed"}) for number in joined]
        case TransitionsJoined():
            return [(number, {"status": "completed"}) for number in event.tokens]
        case WaitRestarted():
            waits = {"status": "waiting_for_siblings", "wake_at": event.until_ms}
            return [(number, waits) for number in event.tokens]
        case TokensTimedOut():
            again = {"retry_status": "waiting_for_siblings"}
            return [(number, {"status": "timed_out", **again}) for number in event.tokens]
        case TokensCancelled():
            return [(number, _cancelled(event, table, run, number)) for number in event.tokens]
        case _:
            return []


def _cancelled(event: TokensCancelled, table: Table, run: tuple[object, ...], number: int) -> Row:
    before = table.get((*run, number), {}).get("status")
    again = before if before == "waiting_for_siblings" else "pending"
    reported = {"status": "cancelled", "reason": event.reason}
    return {**reported, "retry_status": again} if event.kept else reported


def _failed(event: TokenFailed) -> Row:
    error = error_of(event.failure)
    if event.retry_at_ms is not None:
        return {"status": "pending", "next_retry_at": event.retry_at_ms, **error}
    status = "timed_out" if event.timed_out else "failed"
    gave = {} if event.result is None else {"result": event.result}
    again = None if event.handled else "pending"
    return {"status": status, "retry_status": again, **gave, **error}


def _until(until_ms: int | None) -> Row:
    return {} if until_ms is None else {"wake_at": until_ms}


def error_of(failure: Failure | None) -> Row:
    return {
        "error_name": failure and failure.name,
        "error_message": failure and failure.message,
        "error_detail": failure and failure.detail,
    }
