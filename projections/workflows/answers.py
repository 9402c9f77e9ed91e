"""What is answered of workflows: instances, their runs, and what a run's history consists of.

JSON of authors comes as the text that it is: to parse it here would alter numbers and spaces.
"""

from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from headwater.schemas.history import Json

__all__ = [
    "Changed",
    "Changes",
    "CurrentStep",
    "Event",
    "Instance",
    "InstanceListed",
    "LogLine",
    "Page",
    "Run",
    "RunKey",
    "Step",
]

R = TypeVar("R", bound=msgspec.Struct)


class RunKey(msgspec.Struct, frozen=True):
    """Which run."""

    workflow_name: str
    instance_id: str
    run_number: int


class Page(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """Rows; `cursor` continues behind them in the same order, None when there are no more."""

    rows: tuple[R, ...]
    cursor: str | None


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands."""

    run_number: int
    status: str
    output: Json | None
    error_name: str | None
    error_message: str | None
    error_detail: Json | None
    updated_at: datetime
    started_at: datetime
    completed_at: datetime | None


class Run(_Outcome, frozen=True, kw_only=True):
    """A run of an instance."""

    params: Json


class InstanceListed(_Outcome, frozen=True, kw_only=True):
    """An instance in its current run; the position is that of the last record applied."""

    workflow_name: str
    instance_id: str
    created_at: datetime
    partition: int
    offset: int


class CurrentStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a run stands at: an open entry, or the one that an errored run failed at."""

    step_key: str
    name: str
    type: str
    status: str
    attempts: int
    max_attempts: int | None
    timeout_ms: int | None
    next_retry_at: datetime | None
    wake_at: datetime | None
    wait_event_type: str | None
    error_name: str | None
    error_message: str | None


class Instance(InstanceListed, frozen=True, kw_only=True):
    """An instance in its current run, whole."""

    params: Json
    parent_workflow_name: str | None
    parent_instance_id: str | None
    parent_run_number: int | None
    parent_step_key: str | None
    current_step: CurrentStep | None


class Step(CurrentStep, frozen=True, kw_only=True):
    """An entry of a run's history.

    Shape:  trimmed_before is that of a loop: iterations before it are forgotten, with their steps.
    """

    run_number: int
    child_workflow_name: str | None
    child_instance_id: str | None
    result: Json | None
    error_detail: Json | None
    ordinal: int
    sequence: int
    created_at: datetime
    updated_at: datetime
    rolled_back_at: datetime | None
    trimmed_before: int | None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a run has received."""

    run_number: int
    id: str
    type: str
    payload: Json | None
    sequence: int
    created_at: datetime
    delivered_at: datetime | None
    consumed_by_step_key: str | None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a run has written."""

    run_number: int
    id: str
    step_key: str | None
    attempt: int | None
    level: str
    category: str
    message: str
    data: Json | None
    is_replay: bool
    created_at: datetime


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A row as it is now; the offset is that of the last record that changed it."""

    offset: int
    row: Step | Event | LogLine | InstanceListed


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in an instance's current run, by offsets.

    Shape:  rows of one record are steps, events, lines, the instance. All up to `offset` is told:
            go on from there, at once where there is `more`. Another run_number than before is
            another run, of which everything is told. Steps that a loop has forgotten are not told;
            its `trimmed_before` grows.
    """

    run_number: int
    rows: tuple[Changed, ...]
    offset: int
    more: bool
