"""Texts of instances: what a run waits for, as the command line and the console show it."""

from datetime import datetime
from typing import TYPE_CHECKING

from headwater.gateway.client.texts import absolute_and_relative, json_text, relative, shortened
from headwater.schemas.statuses import EntryKind, RunStatus

if TYPE_CHECKING:
    from headwater.schemas.answers import (
        CurrentStep,
        Failure,
        InstanceFound,
        InstanceMeta,
        InstanceStatus,
        SlotAwaited,
        Step,
        TokensAt,
    )


def state_text(instance: "InstanceFound", now: datetime, longest: int | None) -> str | None:
    """Return what a listed instance waits for, or its error or output.

    Args:
        instance: The instance.
        now: Current time.
        longest: Characters of a value that are shown; None for all.
    """
    return _outcome(instance.details, longest) or _position_of(
        instance.workflow_name, instance, instance.details, now, name=True
    )


def current_state_text(
    meta: "InstanceMeta", details: "InstanceStatus", now: datetime
) -> str | None:
    """Return what an instance waits for, without the name of its step."""
    return _position_of(meta.workflow_name, meta, details, now, name=False)


def _position_of(
    workflow: str,
    position: "InstanceFound | InstanceMeta",
    details: "InstanceStatus",
    now: datetime,
    *,
    name: bool,
) -> str | None:
    slot = position.awaited_slot
    return position_text(
        details,
        None if slot else position.current_step,
        now,
        _without_step(workflow, slot, position.current_tokens, now),
        name=name,
    )


def _token_position(group: "TokensAt", now: datetime) -> str:
    status = group.status.replace("_", " ")
    retry_at = group.next_retry_at
    if retry_at is not None:
        status = f"{status}, tried again {relative(retry_at, now)}"
    elif group.wake_at is not None and group.status.startswith("waiting"):
        status = f"{status}, until {absolute_and_relative(group.wake_at, now)}"
    many = f"{group.tokens} " if group.tokens > 1 else ""
    return f"{group.node_ref}: {many}{status}"


def tokens_at(tokens: "list[TokensAt]", now: datetime) -> str | None:
    """Return the position of a graph's run as text."""
    return "; ".join(_token_position(group, now) for group in tokens) or None


def _without_step(
    workflow: str, slot: "SlotAwaited | None", tokens: "list[TokensAt]", now: datetime
) -> str | None:
    """Return the position of a run without a current step: it waits for a slot, or is a graph."""
    if slot is None:
        return tokens_at(tokens, now)
    key = slot.key if isinstance(slot.key, str) else json_text(slot.key)
    scope = workflow if slot.key is None else f"{workflow}/{key}"
    limit = "" if slot.limit is None else f"limit {slot.limit}, "
    since = absolute_and_relative(slot.since, now)
    return f"waiting for a slot of {scope} ({limit}{slot.before} before it), since {since}"


def position_text(
    details: "InstanceStatus",
    step: "CurrentStep | None",
    now: datetime,
    tokens: str | None = None,
    *,
    name: bool = False,
) -> str | None:
    """Return an instance's position as text.

    Args:
        details: Its status.
        step: Its current step.
        now: Current time.
        tokens: Text of a graph's tokens.
        name: Whether to name the step.
    """
    if details.ended:
        return tokens
    reason = waiting_for(step, now) if step else tokens
    if details.status is RunStatus.PAUSED:
        position = f"{step.step_key}: {reason}" if step else tokens
        return f"paused until it is resumed{f'; it is at {position}' if position else ''}"
    if name and step:
        return f"{step.step_key}: {reason}"
    return reason or ("its code is running" if details.status is RunStatus.ACTIVE else None)


def waiting_for(step: "CurrentStep", now: datetime) -> str:
    """Return what an unfinished step waits for, as text."""
    until = f", until {absolute_and_relative(step.wake_at, now)}" if step.wake_at else ""
    match step.type:
        case EntryKind.DO:
            reason = _attempt_text(step, now)
        case EntryKind.SLEEP:
            reason = f"sleeping{until}"
        case EntryKind.WAIT:
            types = step.wait_event_type or []
            names = [types] if isinstance(types, str) else types
            reason = f"waiting for event {' or '.join(names)}{until}"
        case EntryKind.CHILD:
            reason = f"waiting for its child instance{child_text(step)}{until}"
        case EntryKind.JOIN:
            reason = "waiting for all of its branches"
        case EntryKind.RACE:
            reason = "waiting for the first of its branches"
        case EntryKind.LOOP:
            reason = "going through its iterations"
        case other:
            reason = f"{step.status} in {other}{until}"
    return reason


def _attempt_text(step: "CurrentStep", now: datetime) -> str:
    if step.next_retry_at is None:
        number = _of(step.attempts + 1, step.max_attempts)
        failed = f", after {error_text(step.error)}" if step.error else ""
        since = (
            f", since {absolute_and_relative(step.last_attempt_at, now)}"
            if step.last_attempt_at
            else ""
        )
        return f"running, attempt {number}{since}{failed}"
    failed = f": {error_text(step.error)}" if step.error else ""
    when = relative(step.next_retry_at, now)
    return f"waiting to be tried again {when}, attempt {attempts_text(step)} failed{failed}"


def child_text(step: "CurrentStep | Step") -> str:
    """Return the name of a step's child; only a history has it."""
    workflow, instance = (
        getattr(step, name, None) for name in ("child_workflow_name", "child_instance_id")
    )
    return f" {workflow}/{instance}" if instance else ""


def attempts_text(step: "CurrentStep") -> str:
    """Return how many of its attempts a step has made; "" for one without."""
    if step.type is not EntryKind.DO or not step.attempts:
        return ""
    return _of(step.attempts, step.max_attempts)


def _of(number: int, at_most: float | None) -> str:
    return f"{number} of {at_most}" if at_most else str(number)


def _outcome(details: "InstanceStatus", longest: int | None) -> str | None:
    if details.error:
        return shortened(error_text(details.error) or "", None if longest is None else longest * 2)
    return json_text(details.output, longest) if details.status is RunStatus.COMPLETE else None


def error_text(error: "Failure | None") -> str | None:
    """Return an error as text."""
    return f"{error.name}: {error.message}" if error else None
