"""History of one run for display: steps, tokens, events and logs, folded from the log."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from headwater.processors.runs.engine import Engines, engine_of, fold
from headwater.processors.runs.state import Entry, Run
from headwater.schemas.history import (
    Child,
    EntryCompleted,
    EntryRolledBack,
    EventReceived,
    Failure,
    FanInActivated,
    HistoryAppended,
    JobActivated,
    JobExtended,
    Json,
    LeaseExpired,
    LogEvent,
    LogWritten,
    RunStarted,
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

_WAITS: Final = "waiting_for_siblings"
#: Final statuses of a token.
_ENDED: Final = frozenset({"completed", "failed", "timed_out", "cancelled"})


class TokenView(msgspec.Struct, kw_only=True, gc=False):
    """A token, whether it has ended or not.

    Attributes:
        again: Its status at the start of a retry that continues it; None if it had ended before.
        wake_at_ms: Deadline of its wait; it stays after the wait.
    """

    number: int
    node: str
    task: str | None
    subworkflow: str | None
    status: str
    path: str
    parent: int | None
    fork: str | None
    group: str | None
    branch: int
    total: int
    taken: dict[str, int]
    created_at_ms: int
    updated_at_ms: int
    attempts: int = 0
    input: Json | None = None
    result: Json | None = None
    failure: Failure | None = None
    retry_at_ms: int | None = None
    wake_at_ms: int | None = None
    completed_at_ms: int | None = None
    reason: str | None = None
    child: Child | None = None
    idempotency_token: str | None = None
    worker: str | None = None
    lease_until_ms: int | None = None
    again: str | None = None


#: The tokens of a run, by number.
Tokens: TypeAlias = dict[int, TokenView]


def retried_tokens(tokens: Tokens, at_ms: int) -> Tokens:
    """Return the tokens of a run as a retry of it starts with them."""
    return {number: _retried_token(token, at_ms) for number, token in tokens.items()}


def _retried_token(token: TokenView, at_ms: int) -> TokenView:
    if token.again is None:
        return msgspec.structs.replace(token)
    # A token that waits for siblings has as much time left as when the run ended.
    deadline_ms = token.wake_at_ms if token.again == _WAITS else None
    return msgspec.structs.replace(
        token,
        status=token.again,
        updated_at_ms=at_ms,
        completed_at_ms=None,
        attempts=0,
        result=None,
        failure=None,
        retry_at_ms=None,
        wake_at_ms=None if deadline_ms is None else deadline_ms + at_ms - token.updated_at_ms,
        reason=None,
        child=None,
        idempotency_token=None,
        worker=None,
        lease_until_ms=None,
        again=None,
    )


def apply_to_tokens(tokens: Tokens, event: LogEvent, at_ms: int) -> None:
    """Apply an event, if it is about tokens."""
    applier = _APPLIERS.get(type(event))
    if applier is not None:
        applier(tokens, event, at_ms)


def _dispatched(tokens: Tokens, event: TasksDispatched, at_ms: int) -> None:
    for task in event.tasks:
        token = _set(tokens, task.token, at_ms, "dispatched")
        token.attempts = task.attempt
        token.input = token.input if task.input is None else task.input
        token.idempotency_token = task.job


def _under_way(tokens: Tokens, event: TaskUnderWay, at_ms: int) -> None:
    _set(tokens, event.token, at_ms, "executing")


def _activated(tokens: Tokens, event: JobActivated | JobExtended, at_ms: int) -> None:
    token = _set(tokens, event.token, at_ms, "executing")
    token.worker, token.lease_until_ms = event.worker, event.until_ms


def _expired(tokens: Tokens, event: LeaseExpired, at_ms: int) -> None:
    token = _set(tokens, event.token, at_ms, "dispatched", failure=event.failure)
    token.attempts = event.attempt + 1


def _completed(tokens: Tokens, event: TokenCompleted, at_ms: int) -> None:
    _set(tokens, event.token, at_ms, "completed", result=event.result, failure=None)


def _arrived(tokens: Tokens, event: TokenArrived, at_ms: int) -> None:
    _set(tokens, event.token, at_ms, _WAITS).wake_at_ms = event.until_ms


def _waits_for_child(tokens: Tokens, event: SubworkflowStarted, at_ms: int) -> None:
    token = _set(tokens, event.token, at_ms, "waiting_for_subworkflow")
    token.child, token.wake_at_ms = event.child, event.until_ms


def _met(tokens: Tokens, event: FanInActivated, at_ms: int) -> None:
    for number in event.tokens:
        _set(tokens, number, at_ms, "completed")


def _cancelled(tokens: Tokens, event: TokensCancelled, at_ms: int) -> None:
    for number in event.tokens:
        waited = tokens[number].status == _WAITS
        again = (_WAITS if waited else "pending") if event.kept else None
        _set(tokens, number, at_ms, "cancelled", reason=event.reason, again=again)


def _timed_out(tokens: Tokens, event: TokensTimedOut, at_ms: int) -> None:
    for number in event.tokens:
        _set(tokens, number, at_ms, "timed_out", again=_WAITS)


def _set(tokens: Tokens, number: int, at_ms: int, status: str, **fields: Any) -> TokenView:  # noqa: ANN401
    """Set the status of a token and reset its worker, lease and retry time."""
    token = tokens[number]
    token.status, token.updated_at_ms, token.retry_at_ms = status, at_ms, None
    token.completed_at_ms = at_ms if status in _ENDED else None
    token.worker = token.lease_until_ms = None
    for name, value in fields.items():
        setattr(token, name, value)
    return token


def _create(tokens: Tokens, event: TokensCreated, at_ms: int) -> None:
    taken = {transition.ref: transition.times for transition in event.taken}
    for nth in range(event.count):
        number, branch = event.first + nth, event.branch + nth
        tokens[number] = TokenView(
            number=number,
            node=event.node,
            task=event.task,
            subworkflow=event.subworkflow,
            status="pending",
            path=event.path if event.count == 1 else f"{event.path}{branch}",
            parent=event.parent,
            fork=event.fork,
            group=event.group,
            branch=branch,
            total=event.total,
            taken=taken,
            created_at_ms=at_ms,
            updated_at_ms=at_ms,
        )


def _fail(tokens: Tokens, event: TokenFailed, at_ms: int) -> None:
    if event.retry_at_ms is not None:
        token = _set(tokens, event.token, at_ms, "pending", failure=event.failure)
        token.retry_at_ms = event.retry_at_ms
        return
    status = "timed_out" if event.timed_out else "failed"
    kept = {"result": event.result, "again": "pending"}
    _set(tokens, event.token, at_ms, status, failure=event.failure, **kept)


_APPLIERS: Final[dict[type, Callable[[Tokens, Any, int], None]]] = {
    TokensCreated: _create,
    TasksDispatched: _dispatched,
    TaskUnderWay: _under_way,
    JobActivated: _activated,
    JobExtended: _activated,
    LeaseExpired: _expired,
    TokenCompleted: _completed,
    TokenFailed: _fail,
    TokenArrived: _arrived,
    SubworkflowStarted: _waits_for_child,
    FanInActivated: _met,
    TokensCancelled: _cancelled,
    TokensTimedOut: _timed_out,
}


# -- runs


class EventView(msgspec.Struct, kw_only=True, gc=False):
    """An event that the run received."""

    event_id: str
    type: str
    payload: Json
    created_at_ms: int
    delivered_at_ms: int | None = None
    consumed_by_step_key: str | None = None


@dataclass(slots=True)
class RunView:
    """A run up to the position that was read: events and logs are in log order."""

    engines: Engines
    state: Run | None = None
    events: dict[str, EventView] = field(default_factory=dict)
    tokens: dict[int, TokenView] = field(default_factory=dict)
    logs: list[tuple[int, LogWritten]] = field(default_factory=list)
    rolled_back_at_ms: dict[str, int] = field(default_factory=dict)
    rollback_failed_at_ms: dict[str, int] = field(default_factory=dict)

    def apply(self, record: HistoryAppended) -> None:
        """Apply a record that counts."""
        self.state = fold(self.engines, self.state, record)
        for event in record.events:
            apply_to_tokens(self.tokens, event, record.at_ms)
            match event:
                case EventReceived():
                    self.events[event.event_id] = EventView(
                        event_id=event.event_id,
                        type=event.type,
                        payload=event.payload,
                        created_at_ms=event.sent_at_ms,
                    )
                case EntryCompleted():
                    for event_id in event.consumed:
                        consumed = self.events[event_id]
                        consumed.delivered_at_ms = record.at_ms
                        consumed.consumed_by_step_key = event.key
                case EntryRolledBack():
                    ends = self.rollback_failed_at_ms if event.failure else self.rolled_back_at_ms
                    ends[event.key] = record.at_ms
                case LogWritten():
                    self.logs.append((record.at_ms, event))
                case _:
                    pass

    def unconsumed(self) -> dict[str, EventView]:
        """Return the events that are not consumed, for a run that retries this one."""
        return {
            key: msgspec.structs.replace(event)
            for key, event in self.events.items()
            if event.consumed_by_step_key is None
        }

    def steps(self) -> list[tuple[str, Entry]]:
        """Return the entries for display, in the order in which they were first reached."""
        run = self.state
        return [] if run is None else engine_of(self.engines, run.kind).steps(run)


def runs(engines: Engines, records: list[HistoryAppended]) -> dict[int, RunView]:
    """Return the runs of one instance, by number.

    Args:
        engines: The engines by kind.
        records: Records of the instance that count, in order.
    """
    views: dict[int, RunView] = {}
    before: Run | None = None
    for record in records:
        view = views.get(record.run_number)
        first = record.events[0]
        if view is None and isinstance(first, RunStarted):
            view = views[record.run_number] = RunView(engines, before)
            if first.kept is not None:
                view.events = views[record.run_number - 1].unconsumed()
                view.tokens = retried_tokens(views[record.run_number - 1].tokens, record.at_ms)
        if view is not None:
            view.apply(record)
            before = view.state
    return views
