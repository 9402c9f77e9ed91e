"""What is answered, as JSON in camelCase; pure.

Values of authors go out as the text that they came as. Times are RFC 3339 in UTC.
"""

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from headwater.projections.workflows.queries import (
    CurrentStep,
    Event,
    Instance,
    InstanceListed,
    LogLine,
    Page,
    Run,
    Step,
)
from headwater.schemas.history import Json, ReplySent

#: What a list of event types begins with, where a step waits for several.
_LIST: Final = "["


def _author(description: str) -> msgspec.Meta:
    return msgspec.Meta(description=description)


class Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what is answered."""


class Failure(Shape, frozen=True, kw_only=True):
    """An error of an author's code."""

    name: str
    message: str


class InstanceStatus(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """How an instance stands; an output or an error only if it has one."""

    status: str
    error: Failure | msgspec.UnsetType = msgspec.UNSET
    output: Annotated[Any, _author("What the workflow returned.")] = msgspec.UNSET


class InstanceShown(Shape, frozen=True, kw_only=True):
    """An instance, and how it stands."""

    id: str
    details: InstanceStatus


class InstancesShown(Shape, frozen=True, kw_only=True):
    """Instances that were created; those that existed are left out."""

    instances: list[InstanceShown]


class InstancePage(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """Instances, the newest first; `cursor` goes on behind them."""

    instances: list[InstanceShown]
    has_next_page: bool
    cursor: str | msgspec.UnsetType = msgspec.UNSET


class ParentShown(Shape, frozen=True, kw_only=True):
    """The step of another instance that started this one."""

    workflow_name: str
    instance_id: str
    run_number: int
    step_key: str


class CurrentStepShown(Shape, frozen=True, kw_only=True):
    """What a run stands at."""

    step_key: str
    name: str
    type: str
    status: str
    attempts: int
    max_attempts: int | None
    timeout_ms: int | None
    next_retry_at: datetime | None
    wake_at: datetime | None
    wait_event_type: str | list[str] | None
    error: Failure | msgspec.UnsetType = msgspec.UNSET


class InstanceMeta(Shape, frozen=True, kw_only=True):
    """What there is to know of an instance beside how it stands."""

    workflow_name: str
    run_number: int
    params: Annotated[Any, _author("What the run was started with.")]
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    current_step: CurrentStepShown | msgspec.UnsetType = msgspec.UNSET
    parent: ParentShown | msgspec.UnsetType = msgspec.UNSET


class InstanceWhole(Shape, frozen=True, kw_only=True):
    """An instance, whole."""

    id: str
    details: InstanceStatus
    meta: InstanceMeta


class Done(Shape, frozen=True, kw_only=True):
    """What was asked for is so now, and how the instance stands."""

    ok: bool
    status: InstanceStatus


class Begun(Shape, frozen=True, kw_only=True):
    """A new run has begun."""

    ok: bool
    status: InstanceStatus
    run_number: int


class EventTaken(Shape, frozen=True, kw_only=True):
    """The instance has the event; how it stands."""

    status: InstanceStatus


class StepShown(CurrentStepShown, frozen=True, kw_only=True):
    """An entry of a run's history; its id is its key, unique in the run.

    Iterations of a loop before `trimmed_before` are forgotten, with all that was in them.
    """

    id: str
    workflow_name: str
    instance_id: str
    run_number: int
    result: Annotated[Any, _author("What it returned.")]
    error_name: str | None
    error_message: str | None
    child_workflow_name: str | None
    child_instance_id: str | None
    trimmed_before: int | None
    created_at: datetime
    updated_at: datetime
    rolled_back_at: datetime | None


class EventShown(Shape, frozen=True, kw_only=True):
    """An event that a run has received."""

    id: str
    workflow_name: str
    instance_id: str
    run_number: int
    type: str
    payload: Annotated[Any, _author("What it says.")]
    created_at: datetime
    delivered_at: datetime | None
    consumed_by_step_key: str | None


class LogShown(Shape, frozen=True, kw_only=True):
    """A line that a run has written; the category `system` is the engine's."""

    id: str
    workflow_name: str
    instance_id: str
    run_number: int
    step_key: str | None
    attempt: int | None
    level: str
    category: str
    message: str
    data: Annotated[Any, _author("What goes with it.")]
    is_replay: bool
    created_at: datetime


class HistoryShown(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a run's history; logs only if they were asked for."""

    run_number: int
    steps: list[StepShown]
    events: list[EventShown]
    steps_has_next_page: bool
    events_has_next_page: bool
    steps_cursor: str | msgspec.UnsetType = msgspec.UNSET
    events_cursor: str | msgspec.UnsetType = msgspec.UNSET
    logs: list[LogShown] | msgspec.UnsetType = msgspec.UNSET
    logs_cursor: str | msgspec.UnsetType = msgspec.UNSET
    logs_has_next_page: bool | msgspec.UnsetType = msgspec.UNSET


class WorkflowName(Shape, frozen=True, kw_only=True):
    """A workflow."""

    name: str


class WorkflowNames(Shape, frozen=True, kw_only=True):
    """The workflows whose code a worker has."""

    workflows: list[WorkflowName]


class Ticked(Shape, frozen=True, kw_only=True):
    """What a tick did."""

    processed: int


def status_shown(row: InstanceListed | Instance | Run) -> InstanceStatus:
    """How an instance stands."""
    return InstanceStatus(
        status=row.status,
        error=_failure(row.error_name, row.error_message),
        output=msgspec.UNSET if row.output is None else _raw(row.output),
    )


def status_replied(reply: ReplySent) -> InstanceStatus:
    """How an instance stood when a command had its outcome: all that a reply says of it."""
    return InstanceStatus(status=reply.status)


def instance_shown(row: InstanceListed) -> InstanceShown:
    """An instance in a listing."""
    return InstanceShown(id=row.instance_id, details=status_shown(row))


def page_shown(page: Page[InstanceListed]) -> InstancePage:
    """A page of a listing."""
    return InstancePage(
        instances=[instance_shown(row) for row in page.rows],
        has_next_page=page.cursor is not None,
        cursor=page.cursor or msgspec.UNSET,
    )


def instance_whole(row: Instance) -> InstanceWhole:
    """An instance, whole."""
    step = row.current_step
    return InstanceWhole(
        id=row.instance_id,
        details=status_shown(row),
        meta=InstanceMeta(
            workflow_name=row.workflow_name,
            run_number=row.run_number,
            params=_raw(row.params),
            created_at=row.created_at,
            updated_at=row.updated_at,
            started_at=row.started_at,
            completed_at=row.completed_at,
            current_step=msgspec.UNSET if step is None else _current(step),
            parent=_parent(row),
        ),
    )


def step_shown(row: Step, workflow_name: str, instance_id: str) -> StepShown:
    """An entry of a history."""
    return StepShown(
        id=row.step_key,
        workflow_name=workflow_name,
        instance_id=instance_id,
        run_number=row.run_number,
        **_standing(row),
        result=_raw(row.result),
        error_name=row.error_name,
        error_message=row.error_message,
        child_workflow_name=row.child_workflow_name,
        child_instance_id=row.child_instance_id,
        trimmed_before=row.trimmed_before,
        created_at=row.created_at,
        updated_at=row.updated_at,
        rolled_back_at=row.rolled_back_at,
    )


def event_shown(row: Event, workflow_name: str, instance_id: str) -> EventShown:
    """An event of a history."""
    return EventShown(
        id=row.id,
        workflow_name=workflow_name,
        instance_id=instance_id,
        run_number=row.run_number,
        type=row.type,
        payload=_raw(row.payload),
        created_at=row.created_at,
        delivered_at=row.delivered_at,
        consumed_by_step_key=row.consumed_by_step_key,
    )


def log_shown(row: LogLine, workflow_name: str, instance_id: str) -> LogShown:
    """A line of a history."""
    return LogShown(
        id=row.id,
        workflow_name=workflow_name,
        instance_id=instance_id,
        run_number=row.run_number,
        step_key=row.step_key,
        attempt=row.attempt,
        level=row.level,
        category=row.category,
        message=row.message,
        data=_raw(row.data),
        is_replay=row.is_replay,
        created_at=row.created_at,
    )


def _current(row: CurrentStep) -> CurrentStepShown:
    return CurrentStepShown(**_standing(row))


def _standing(row: CurrentStep) -> dict[str, Any]:
    return {
        "step_key": row.step_key,
        "name": row.name,
        "type": row.type,
        "status": row.status,
        "attempts": row.attempts,
        "max_attempts": row.max_attempts,
        "timeout_ms": row.timeout_ms,
        "next_retry_at": row.next_retry_at,
        "wake_at": row.wake_at,
        "wait_event_type": _event_types(row.wait_event_type),
        "error": _failure(row.error_name, row.error_message),
    }


def _event_types(text: str | None) -> str | list[str] | None:
    """What is waited for; no type begins as a list does."""
    if text is not None and text.startswith(_LIST):
        return msgspec.json.decode(text, type=list[str])
    return text


def _failure(name: str | None, message: str | None) -> Failure | msgspec.UnsetType:
    return msgspec.UNSET if name is None else Failure(name=name, message=message or "")


def _parent(row: Instance) -> ParentShown | msgspec.UnsetType:
    if row.parent_workflow_name is None:
        return msgspec.UNSET
    return ParentShown(
        workflow_name=row.parent_workflow_name,
        instance_id=row.parent_instance_id or "",
        run_number=row.parent_run_number or 0,
        step_key=row.parent_step_key or "",
    )


def _raw(text: Json | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())
