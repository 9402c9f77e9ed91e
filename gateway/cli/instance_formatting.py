"""Formatting of instances of workflows, and tokens of graphs, as rows and texts to print."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headwater.gateway.cli.results import Columns
from headwater.gateway.client.instance_texts import (
    attempts_text,
    child_text,
    current_state_text,
    error_text,
    state_text,
    waiting_for,
)
from headwater.gateway.client.texts import (
    absolute_and_relative,
    json_text,
    moment,
    relative,
    span,
    span_ms,
)
from headwater.schemas.statuses import OPEN, EntryStatus, RunStatus

if TYPE_CHECKING:
    from headwater.schemas.answers import (
        Event,
        Failure,
        GraphEvent,
        Instance,
        InstanceFound,
        LogLine,
        Step,
        Token,
    )


_TOKEN_STATES: Final = {
    "pending": ("● pending", "cyan"),
    "dispatched": ("● dispatched", "cyan"),
    "executing": ("● executing", "cyan"),
    "waiting_for_siblings": ("… waiting", "yellow"),
    "waiting_for_subworkflow": ("… waiting", "yellow"),
    "waiting_for_time": ("… waiting", "yellow"),
    "waiting_for_event": ("… waiting", "yellow"),
    "completed": ("✓ completed", "green"),
    "failed": ("✗ failed", "bold red"),
    "timed_out": ("✗ timed out", "bold red"),
    "cancelled": ("⊘ cancelled", "dim"),
}
TOKENS: Final = Columns(
    ("began", "state", "token", "node", "branch", "attempts", "took", "what"),
    drops=("attempts", "began", "branch", "token", "took"),
    styles={"state": dict(_TOKEN_STATES.values())},
)


def token_rows(
    tokens: "list[Token]", now: datetime, longest: int | None, *, frames: bool
) -> list[dict[str, Any]]:
    """Return the timeline of a graph's run: when each token began, its state and duration."""
    first = tokens[0].created_at if tokens else now
    return [
        {
            "began": f"+{span(span_ms(first, token.created_at))}",
            "state": _TOKEN_STATES.get(token.status, (f"? {token.status}", ""))[0],
            "token": token.id,
            "node": token.node_ref,
            "branch": _branch(token),
            "attempts": token.attempts or None,
            "took": span(span_ms(token.created_at, token.completed_at or now)),
            "what": _token_result(token, now, longest, frames=frames),
        }
        for token in tokens
    ]


def _branch(token: "Token") -> str | None:
    return f"{token.branch_index + 1} of {token.branch_total}" if token.branch_total > 1 else None


def _token_result(  # noqa: PLR0911 (a return per status)
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
        case "waiting_for_time":
            return f"waiting{until}"
        case "waiting_for_event":
            return f"waiting for an event of type {token.event_type}{until}"
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


# -- instances

Rows: TypeAlias = list[dict[str, Any]]

STATUS_STYLES: Final[dict[str, str]] = {
    RunStatus.ACTIVE: "cyan",
    RunStatus.WAITING: "yellow",
    RunStatus.PAUSED: "magenta",
    RunStatus.COMPLETE: "green",
    RunStatus.ERRORED: "bold red",
    RunStatus.TERMINATED: "red",
}
LEVEL_STYLES: Final = {"debug": "dim", "info": "cyan", "warn": "yellow", "error": "bold red"}
_STATES: Final = {
    EntryStatus.PENDING: ("● pending", "cyan"),
    EntryStatus.WAITING: ("… waiting", "yellow"),
    EntryStatus.COMPLETED: ("✓ completed", "green"),
    EntryStatus.ERRORED: ("✗ errored", "bold red"),
    EntryStatus.CANCELLED: ("⊘ cancelled", "dim"),
}
STATE_STYLES: Final = dict(_STATES.values())


def listed_rows(instances: "list[InstanceFound]", now: datetime, longest: int | None) -> Rows:
    """Return the rows of a listing: age, and what an instance waits for or returned.

    Args:
        instances: The instances.
        now: Current time.
        longest: Characters of a value that are shown; None for all.
    """
    return [
        {
            "instance": f"{instance.workflow_name}/{instance.id}",
            "status": instance.details.status,
            "age": span(span_ms(instance.created_at, now)),
            "updated": relative(instance.updated_at, now),
            "deployment": instance.deployment_id,
            "what": state_text(instance, now, longest),
        }
        for instance in instances
    ]


def summary(instance: "Instance", now: datetime, *, full: bool) -> dict[str, object]:
    """Return an instance by fields; all of them if `full`."""
    meta, details, step = instance.meta, instance.details, instance.meta.current_step
    fields: dict[str, object] = {
        "instance": f"{meta.workflow_name}/{instance.id}",
        "status": details.status,
        "step": f"{step.step_key} ({step.type})" if step else None,
        "state": current_state_text(meta, details, now),
        "error": error_text(details.error),
        "labels": ", ".join(f"{name}={value}" for name, value in instance.labels.items()) or None,
        "run": meta.run_number,
        "deployment": meta.deployment_id,
        "started": absolute_and_relative(meta.started_at, now) if meta.started_at else None,
        "updated": absolute_and_relative(meta.updated_at, now),
        "ended": absolute_and_relative(meta.completed_at, now) if meta.completed_at else None,
    }
    if full:
        fields |= _full_fields(instance, now)
    return {name: value for name, value in fields.items() if value is not None}


def _full_fields(instance: "Instance", now: datetime) -> dict[str, object]:
    meta, step, error = instance.meta, instance.meta.current_step, instance.details.error
    if error is None and step:
        error = step.error
    fields: dict[str, object] = {
        "traceback": error.traceback.rstrip() if error and error.traceback else None,
        "created": absolute_and_relative(meta.created_at, now),
        "took": _between(meta.started_at, meta.completed_at),
    }
    if step:
        fields |= {
            "step name": step.name,
            "step status": step.status,
            "step attempts": attempts_text(step) or None,
            "step timeout": span(step.timeout_ms) if step.timeout_ms else None,
            "step error": error_text(step.error),
        }
    if parent := meta.parent:
        at_step = f"{parent.step_key}, run {parent.run_number}"
        fields["parent"] = f"{parent.workflow_name}/{parent.instance_id} at {at_step}"
    fields["params"] = json_text(meta.params)
    if instance.details.status is RunStatus.COMPLETE:
        fields["output"] = json_text(instance.details.output)
    return fields


def step_rows(steps: "list[Step]", now: datetime, longest: int | None, *, frames: bool) -> Rows:
    """Return the timeline of a run: when each entry began, its state, duration and result.

    Args:
        steps: The entries.
        now: Current time.
        longest: As for `listed_rows`.
        frames: Whether errors include the frames of the author's code.
    """
    first = steps[0].created_at if steps else None
    return [
        {
            "began": _after(first, step.created_at),
            "state": _STATES.get(step.status, (f"? {step.status}", ""))[0],
            "step": step.step_key,
            "type": step.type,
            "attempts": attempts_text(step),
            "took": _took(step, now),
            "what": _what(step, now, longest, frames=frames),
        }
        for step in steps
    ]


def _took(step: "Step", now: datetime) -> str | None:
    return _between(step.created_at, now if step.status in OPEN else step.completed_at)


def _what(step: "Step", now: datetime, longest: int | None, *, frames: bool) -> str | None:
    """Return an entry's reason to wait, its error, or its result."""
    if step.status in OPEN:
        return waiting_for(step, now)
    if step.error and step.status is not EntryStatus.COMPLETED:
        return _in_full(step.error) if frames else error_text(step.error)
    undone = f"rolled back at {moment(step.rolled_back_at)}" if step.rolled_back_at else ""
    if step.rollback_failed_at:
        undone = f"rollback given up at {moment(step.rollback_failed_at)}"
    result = "" if step.result is None else json_text(step.result, longest)
    return "; ".join(part for part in (undone, child_text(step).strip(), result) if part) or None


def event_rows(events: "list[Event]", longest: int | None) -> Rows:
    """Return events that a run has received, and the steps that consumed them."""
    return [
        {
            "at": _time_of_day(event.created_at),
            "type": event.type,
            "consumed by": event.consumed_by_step_key or "no step yet",
            "payload": json_text(event.payload, longest),
        }
        for event in events
    ]


#: Columns of log lines, with the width that most lines need.
LOG_WIDTHS: Final = {"at": 27, "level": 5, "category": 10, "step": 16, "message": 0, "data": 0}


def log_row(line: "LogLine") -> dict[str, Any]:
    """Return a log line as a row; a line that a replay wrote again is marked."""
    attempt = f"#{line.attempt}" if line.attempt is not None else ""
    return {
        "at": _time_of_day(line.created_at),
        "level": line.level,
        "category": line.category,
        "step": f"{line.step_key}{attempt}" if line.step_key else "-",
        "message": f"(replay) {line.message}" if line.is_replay else line.message,
        "data": None if line.data is None else json_text(line.data),
    }


def graph_event_row(event: "GraphEvent") -> dict[str, Any]:
    """Return a workflow event of a graph as a row of its log."""
    token = "" if event.token_id is None else f" #{event.token_id}"
    return {
        "at": _time_of_day(event.created_at),
        "level": "event",
        "category": "graph",
        "step": f"{event.node_ref}{token}" if event.node_ref else "-",
        "message": event.name,
        "data": json_text(event.payload) if event.payload else None,
    }


def _in_full(error: "Failure | None") -> str | None:
    """Return an error with the frames of the author's code, which include its text."""
    return error.traceback.rstrip() if error and error.traceback else error_text(error)


def _between(since: datetime | None, until: datetime | None) -> str | None:
    return span(span_ms(since, until)) if since and until else None


def _after(first: datetime | None, when: datetime | None) -> str | None:
    return f"+{span(span_ms(first, when))}" if first and when else None


def _time_of_day(when: datetime) -> str:
    return f"{moment(when).removesuffix(' UTC')}.{when.microsecond // 1000:03d} UTC"
