"""The tokens of a graph's run as people see them, folded from its events."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from headwater.schemas.history import (
    Child,
    Failure,
    FanInActivated,
    Json,
    LogEvent,
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


class TokenView(msgspec.Struct, kw_only=True, gc=False):
    """A token, whether it has ended or not.

    Shape:  `again` is its status in a retry of its run, which takes it up again; None for one that
            had ended before.
    """

    number: int
    node: str
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
    reason: str | None = None
    child: Child | None = None
    again: str | None = None


#: The tokens of a run, by number.
Tokens: TypeAlias = dict[int, TokenView]


def taken_up(tokens: Tokens) -> Tokens:
    """The tokens of a run as a retry of it begins with them."""
    found = {}
    for number, token in tokens.items():
        found[number] = msgspec.structs.replace(token)
        if token.again is not None:
            found[number] = msgspec.structs.replace(
                token, status=token.again, attempts=0, failure=None, reason=None, again=None
            )
    return found


def apply(tokens: Tokens, event: LogEvent, at_ms: int) -> None:
    """Applies an event, if it is about tokens."""
    applier = _APPLIERS.get(type(event))
    if applier is not None:
        applier(tokens, event, at_ms)


def _dispatched(tokens: Tokens, event: TasksDispatched, at_ms: int) -> None:
    for task in event.tasks:
        token = _set(tokens, task.token, at_ms, status="dispatched", retry_at_ms=None)
        token.attempts = task.attempt
        token.input = token.input if task.input is None else task.input


def _under_way(tokens: Tokens, event: TaskUnderWay, at_ms: int) -> None:
    _set(tokens, event.token, at_ms, status="executing")


def _completed(tokens: Tokens, event: TokenCompleted, at_ms: int) -> None:
    _set(tokens, event.token, at_ms, status="completed", result=event.result, failure=None)


def _arrived(tokens: Tokens, event: TokenArrived, at_ms: int) -> None:
    _set(tokens, event.token, at_ms, status=_WAITS)


def _waits_for_child(tokens: Tokens, event: SubworkflowStarted, at_ms: int) -> None:
    _set(tokens, event.token, at_ms, status="waiting_for_subworkflow", child=event.child)


def _met(tokens: Tokens, event: FanInActivated, at_ms: int) -> None:
    for number in event.tokens:
        _set(tokens, number, at_ms, status="completed")


def _cancelled(tokens: Tokens, event: TokensCancelled, at_ms: int) -> None:
    for number in event.tokens:
        waited = tokens[number].status == _WAITS
        again = (_WAITS if waited else "pending") if event.kept else None
        _set(tokens, number, at_ms, status="cancelled", reason=event.reason, again=again)


def _timed_out(tokens: Tokens, event: TokensTimedOut, at_ms: int) -> None:
    for number in event.tokens:
        _set(tokens, number, at_ms, status="timed_out", again=_WAITS)


def _set(tokens: Tokens, number: int, at_ms: int, **fields: Any) -> TokenView:  # noqa: ANN401
    token = tokens[number]
    token.updated_at_ms = at_ms
    for name, value in fields.items():
        setattr(token, name, value)
    return token


def _create(tokens: Tokens, event: TokensCreated, at_ms: int) -> None:
    taken = {each.ref: each.times for each in event.taken}
    for nth in range(event.count):
        number, branch = event.first + nth, event.branch + nth
        tokens[number] = TokenView(
            number=number,
            node=event.node,
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
    token = _set(tokens, event.token, at_ms, failure=event.failure, retry_at_ms=event.retry_at_ms)
    if event.retry_at_ms is not None:
        token.status = "pending"
        return
    token.status = "timed_out" if event.timed_out else "failed"
    token.again = "pending"


_APPLIERS: Final[dict[type, Callable[[Tokens, Any, int], None]]] = {
    TokensCreated: _create,
    TasksDispatched: _dispatched,
    TaskUnderWay: _under_way,
    TokenCompleted: _completed,
    TokenFailed: _fail,
    TokenArrived: _arrived,
    SubworkflowStarted: _waits_for_child,
    FanInActivated: _met,
    TokensCancelled: _cancelled,
    TokensTimedOut: _timed_out,
}
