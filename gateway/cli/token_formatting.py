"""Formatting of graph tokens as rows and texts to print."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from headwater.gateway.cli.output import json_text
from headwater.gateway.cli.times import absolute_and_relative, relative, span, span_ms

if TYPE_CHECKING:
    from headwater.schemas.answers import Token, TokensAt

TOKEN_COLUMNS: Final = ("began", "state", "token", "node", "branch", "attempts", "took", "what")
#: Columns that a narrow terminal drops, in this order.
TOKEN_DROPS: Final = ("attempts", "began", "branch", "token", "took")
_STATES: Final = {
    "pending": ("● pending", "cyan"),
    "dispatched": ("● dispatched", "cyan"),
    "executing": ("● executing", "cyan"),
    "waiting_for_siblings": ("… waiting", "yellow"),
    "waiting_for_subworkflow": ("… waiting", "yellow"),
    "completed": ("✓ completed", "green"),
    "failed": ("✗ failed", "bold red"),
    "timed_out": ("✗ timed out", "bold red"),
    "cancelled": ("⊘ cancelled", "dim"),
}
TOKEN_STYLES: Final = dict(_STATES.values())


def tokens_at(tokens: "list[TokensAt]", now: datetime) -> str | None:
    """Return the position of a graph's run as text."""
    return "; ".join(_position_text(group, now) for group in tokens) or None


def _position_text(group: "TokensAt", now: datetime) -> str:
    status = group.status.replace("_", " ")
    retry_at = group.next_retry_at
    if retry_at is not None:
        status = f"{status}, tried again {relative(retry_at, now)}"
    elif group.wake_at is not None and group.status.startswith("waiting"):
        status = f"{status}, until {absolute_and_relative(group.wake_at, now)}"
    many = f"{group.tokens} " if group.tokens > 1 else ""
    return f"{group.node_ref}: {many}{status}"


def token_rows(
    tokens: "list[Token]", now: datetime, longest: int | None, *, frames: bool
) -> list[dict[str, Any]]:
    """Return the timeline of a graph's run: when each token began, its state and duration."""
    first = tokens[0].created_at if tokens else now
    return [
        {
            "began": f"+{span(span_ms(first, token.created_at))}",
            "state": _STATES.get(token.status, (f"? {token.status}", ""))[0],
            "token": token.id,
            "node": token.node_ref,
            "branch": _branch(token),
            "attempts": token.attempts or None,
            "took": span(span_ms(token.created_at, token.completed_at or now)),
            "what": _what(token, now, longest, frames=frames),
        }
        for token in tokens
    ]


def _branch(token: "Token") -> str | None:
    return f"{token.branch_index + 1} of {token.branch_total}" if token.branch_total > 1 else None


def _what(  # noqa: PLR0911 (a return per status)
    token: "Token", now: datetime, longest: int | None, *, frames: bool
) -> str | None:
    """Return what a token waits for, its error, or its result."""
    error = f"{token.error.name}: {token.error.message}" if token.error else None
    until = f", until {absolute_and_relative(token.wake_at, now)}" if token.wake_at else ""
    match token.status:
        case "pending" if token.next_retry_at is not None:
            waiting = f"waiting to be tried again {relative(token.next_retry_at, now)}"
            return f"{waiting}: {error}" if error else waiting
        case "waiting_for_siblings":
            return f"waiting for its siblings{until}"
        case "waiting_for_subworkflow":
            return f"waiting for {token.child_workflow_name}/{token.child_instance_id}{until}"
        case "executing" if token.worker and token.lease_until:
            expires = absolute_and_relative(token.lease_until, now)
            return f"a job that {token.worker} holds until {expires}"
        case "cancelled":
            return token.reason
        case "completed":
            return None if token.result is None else json_text(token.result, longest)
        case _:
            in_full = frames and token.error and token.error.traceback
            return in_full.rstrip() if in_full else error
