"""Derive the workflow events of a graph's run, by name, from the events of its history.

Nothing is written twice: an event of the history has none, one or several of them. What completed
or failed at a token depends on the token's node, which most events do not name. So an event here
has the name for a node with a task and the one for a node with a child workflow, and readers of the
token's row choose: Postgres in `insert_graph_events`, the harness in `HistoryRows`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from headwater.processors.graph.state import KIND
from headwater.processors.rows.patches import EventContext, Values
from headwater.schemas.history import (
    Failure,
    FanInActivated,
    ForkOpened,
    LeaseExpired,
    LogEvent,
    RunCompleted,
    RunErrored,
    RunStarted,
    RunTerminated,
    SubworkflowStarted,
    TasksDispatched,
    TokenArrived,
    TokenCompleted,
    TokenFailed,
    TokensCreated,
    TransitionsJoined,
    WaitStarted,
)

#: Characters of an error's message; the row of the token has all of it.
_MESSAGE_MAX: Final = 1_000
#: Joined tokens, or merges, that one event names; the rows of the tokens have all of them.
_NAMED_MAX: Final = 100
_encode: Final = msgspec.json.Encoder().encode
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Derived(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workflow event.

    Attributes:
        token_id: Its token; None for one of the whole run.
        node_ref: Its node; None if only the row of the token has it.
        child_name: Its name if the token's node starts a child workflow; there is no event if the
            node has neither a task nor a child. None if the name does not depend on the node.
    """

    name: str
    token_id: int | None = None
    node_ref: str | None = None
    child_name: str | None = None
    payload: Mapping[str, Any] = {}


def derive(event: LogEvent, *, in_graph: bool) -> Iterable[Derived]:
    """Return the workflow events of an event.

    Args:
        event: An event of any run.
        in_graph: Whether the run is that of a graph. Only the end of a run needs it; events of
            graphs are recognized.
    """
    kind = type(event)
    if kind not in _DERIVERS or (kind in _ENDS and not in_graph):
        return ()
    return _DERIVERS[kind](event)


# -- the run


def _started(event: RunStarted) -> Iterator[Derived]:
    if event.kind == KIND:
        digest = event.definition.digest if event.definition else ""
        payload = {"definition_digest": digest, "is_retry": event.kept is not None}
        yield Derived(name="workflow.started", payload=payload)


def _completed(event: RunCompleted) -> Iterator[Derived]:
    yield Derived(name="workflow.completed")


def _failed(event: RunErrored | RunTerminated) -> Iterator[Derived]:
    status = "errored" if isinstance(event, RunErrored) else "terminated"
    payload = {"status": status, "error": _error(event.failure)}
    yield Derived(name="workflow.failed", payload=payload)


def _error(failure: Failure | None) -> Values | None:
    if failure is None:
        return None
    return {"name": failure.name, "message": failure.message[:_MESSAGE_MAX]}


# -- tasks and children


def _dispatched(event: TasksDispatched) -> Iterable[Derived]:
    return [
        Derived(name="task.dispatched", token_id=task.token, payload={"attempt": task.attempt})
        for task in event.tasks
    ]


def _child_started(event: SubworkflowStarted) -> Iterator[Derived]:
    payload = {"workflow_name": event.child.workflow, "instance_id": event.child.instance_id}
    yield Derived(name="subworkflow.dispatched", token_id=event.token, payload=payload)
    yield Derived(name="token.waiting", token_id=event.token)


def _task_completed(event: TokenCompleted) -> Iterable[Derived]:
    payload = {"status": "completed", "attempt": event.attempt}
    ended = _ended("task.completed", event.token, payload)
    return (ended, Derived(name="token.completed", token_id=event.token))


def _task_failed(event: TokenFailed) -> Iterator[Derived]:
    retry_ms = event.retry_at_ms
    payload = {
        "status": "timed_out" if event.timed_out else "failed",
        "attempt": event.attempt,
        "error": _error(event.failure),
        "retry_at": None if retry_ms is None else _EPOCH + timedelta(milliseconds=retry_ms),
    }
    yield _ended("task.failed", event.token, payload)


def _lease_expired(event: LeaseExpired) -> Iterator[Derived]:
    ended = {"status": "timed_out", "attempt": event.attempt, "error": _error(event.failure)}
    yield _ended("task.failed", event.token, {**ended, "retry_at": None})


def _ended(name: str, token: int, payload: Values) -> Derived:
    return Derived(name=name, token_id=token, child_name="subworkflow.completed", payload=payload)


# -- tokens, forks and joins


def _created(event: TokensCreated) -> Iterable[Derived]:
    if event.count == 1:
        return (_created_in(event, event.first, event.path, event.branch),)
    return [
        _created_in(event, number, f"{event.path}{branch}", branch)
        for number, branch in enumerate(
            range(event.branch, event.branch + event.count), event.first
        )
    ]


def _created_in(event: TokensCreated, number: int, path: str, branch: int) -> Derived:
    payload = {
        "transition_ref": event.transition,
        "path_id": path,
        "sibling_group": event.group,
        "branch_index": branch,
        "branch_total": event.total,
    }
    return Derived(name="token.created", token_id=number, node_ref=event.node, payload=payload)


def _waits(event: TokenArrived | WaitStarted) -> Iterable[Derived]:
    return (Derived(name="token.waiting", token_id=event.token),)


def _forked(event: ForkOpened) -> Iterator[Derived]:
    payload = {"fork": event.fork, "sibling_group": event.group, "branch_total": event.total}
    yield Derived(name="fan_out.started", token_id=event.origin, payload=payload)


def _joined(event: FanInActivated) -> Iterator[Derived]:
    payload: Values = {
        "fork": event.fork,
        "tokens": len(event.tokens),
        "token_ids": [str(token) for token in event.tokens[:_NAMED_MAX]],
    }
    yield Derived(name="fan_in.completed", node_ref=event.node, payload=payload)
    if event.merges:
        merges = [
            {"source": merge.source, "target": merge.target, "strategy": merge.strategy}
            for merge in event.merges[:_NAMED_MAX]
        ]
        payload = {"fork": event.fork, "merges": merges}
        yield Derived(name="branches.merged", node_ref=event.node, payload=payload)
    for number in (*event.tokens, *event.elsewhere):
        yield Derived(name="token.completed", token_id=number)


def _transitions_joined(event: TransitionsJoined) -> Iterator[Derived]:
    for number in event.tokens:
        yield Derived(name="token.completed", token_id=number)


_ENDS: Final = frozenset({RunCompleted, RunErrored, RunTerminated})
_DERIVERS: Final[Mapping[type, Callable[[Any], Iterable[Derived]]]] = {
    RunStarted: _started,
    RunCompleted: _completed,
    RunErrored: _failed,
    RunTerminated: _failed,
    TasksDispatched: _dispatched,
    SubworkflowStarted: _child_started,
    TokenCompleted: _task_completed,
    TokenFailed: _task_failed,
    LeaseExpired: _lease_expired,
    TokensCreated: _created,
    TokenArrived: _waits,
    WaitStarted: _waits,
    ForkOpened: _forked,
    FanInActivated: _joined,
    TransitionsJoined: _transitions_joined,
}


# -- rows


def row_of(context: EventContext, position: int, derived: Derived) -> Values:
    """Return the columns of a workflow event, and `child_name`, by which the name is chosen."""
    payload = derived.payload
    return {
        "workflow_name": context.workflow_name,
        "instance_id": context.instance_id,
        "run_number": context.run_number,
        "offset": context.offset,
        "sequence": context.sequence,
        "position": position,
        "name": derived.name,
        "node_ref": derived.node_ref,
        "token_id": derived.token_id,
        "payload": _encode(payload).decode() if payload else "{}",
        "created_at": context.at_ms,
        "child_name": derived.child_name,
    }


def chosen(row: Values, token: Values | None) -> Values | None:
    """Choose the name of a workflow event, as `insert_graph_events` does.

    Args:
        row: A row of `row_of`.
        token: Row of its token, if there is one.

    Returns:
        The row as it is stored; None if its token has neither a task nor a child.
    """
    row = dict(row)
    child_name, token = row.pop("child_name"), token or {}
    if child_name is not None and token.get("task") is None:
        if token.get("subworkflow") is None:
            return None
        row["name"] = child_name
    if row["node_ref"] is None:
        row["node_ref"] = token.get("node_ref")
    return row
