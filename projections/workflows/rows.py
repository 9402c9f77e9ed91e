"""Rows of workflows as parameters of statements, and changes of rows in Postgres.

Most events change a row that only Postgres has. So a batch has two kinds of objects: rows with all
their fields, and changes of rows that may exist. Both have the same methods. Events of one row
within a batch are merged before anything is written.

Fields have the names used in the statements; a field with its default value is omitted.
"""

from typing import Final

import msgspec
from typing_extensions import override

from headwater.processors.code.state import keys_of_iterations
from headwater.processors.runs.state import TRANSITIONS
from headwater.schemas.history import Failure, Json, Parent
from headwater.schemas.statuses import OPEN, EntryStatus, RunStatus

#: The status after an event; None if it depends on the status before.
_LEADS_TO: Final[dict[type, RunStatus | None]] = {
    event: targets.pop() if len(targets) == 1 else None
    for event, targets in ((event, set(moves.values())) for event, moves in TRANSITIONS.items())
}

#: Fields with JSON text of authors, which is stored unchanged or rejected.
AUTHORS_JSON: Final = frozenset(
    {"params", "output", "input", "result", "payload", "data", "error_detail"}
)


class WithError(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """Base of rows that may have an error."""

    error_name: str | None = None
    error_message: str | None = None
    error_detail: Json | None = None

    def fail(self, failure: Failure | None) -> None:
        """Set or clear the error."""
        self.error_name, self.error_message, self.error_detail = (
            (None, None, None)
            if failure is None
            else (failure.name, failure.message, failure.detail)
        )


class _Run(WithError, kw_only=True, omit_defaults=True, gc=False):
    """Common fields of rows and changes of instances.

    Attributes:
        status: None leaves it unchanged.
        forced: Whether to set the status unconditionally; otherwise only if the run is active or
            waiting.
    """

    workflow_name: str
    instance_id: str
    run_number: int
    status: RunStatus | None = None
    forced: bool = False
    output: Json | None = None
    completed_at_ms: int | None = None
    retention_until_ms: int | None = None
    updated_at_ms: int
    partition: int
    offset: int

    def move(self, event: type) -> None:
        """Set the status that follows from an event.

        If the previous status matters and is not known here, the run becomes active unless it is
        paused.
        """
        if self.forced and self.status is not None:
            self.status = TRANSITIONS[event].get(self.status, self.status)
        else:
            status = _LEADS_TO[event]
            self.status, self.forced = status or RunStatus.ACTIVE, status is not None

    def end(
        self, output: Json | None, failure: Failure | None, at_ms: int, kept_until_ms: int | None
    ) -> None:
        """End the run. Without `kept_until_ms` the instance is kept indefinitely."""
        self.output = output
        self.fail(failure)
        self.completed_at_ms, self.retention_until_ms = at_ms, kept_until_ms


class InstanceRow(_Run, kw_only=True, omit_defaults=True, gc=False):
    """An instance with a run that begins in this batch.

    If the run `retries` another, it keeps that run's start; other fields of the previous row are
    replaced.
    """

    params: Json
    retries: bool = False
    parent_workflow_name: str | None = None
    parent_instance_id: str | None = None
    parent_run_number: int | None = None
    parent_step_key: str | None = None
    deployment_id: str | None = None
    labels: dict[str, str] = {}
    started_at_ms: int
    run_offset: int

    def set_parent(self, parent: Parent | None) -> None:
        """Set the parent."""
        if parent is not None:
            self.parent_workflow_name = parent.workflow
            self.parent_instance_id = parent.instance_id
            self.parent_run_number = parent.run_number
            self.parent_step_key = parent.key


class InstanceChange(_Run, kw_only=True, omit_defaults=True, gc=False):
    """A change of an instance with a run that began before this batch."""

    ended: bool = False

    @override
    def end(
        self, output: Json | None, failure: Failure | None, at_ms: int, kept_until_ms: int | None
    ) -> None:
        """End the run. Without `kept_until_ms` the instance is kept indefinitely."""
        super().end(output, failure, at_ms, kept_until_ms)
        self.ended = True


class _Step(WithError, kw_only=True, omit_defaults=True, gc=False):
    """Common fields of rows and changes of steps."""

    workflow_name: str
    instance_id: str
    run_number: int
    step_key: str
    status: EntryStatus | None = None
    result: Json | None = None
    updated_at_ms: int
    last_attempt_at_ms: int | None = None
    completed_at_ms: int | None = None
    rolled_back_at_ms: int | None = None
    rollback_failed_at_ms: int | None = None
    trimmed_before: int | None = None
    offset: int

    def settle(
        self, status: EntryStatus, result: Json | None, failure: Failure | None, at_ms: int
    ) -> None:
        """End the step."""
        self.set_status(status, at_ms)
        self.result = result
        self.fail(failure)

    def set_status(self, status: EntryStatus, at_ms: int) -> None:
        """Set the status. Result and error stay."""
        self.status = status
        self.updated_at_ms = at_ms
        if status not in OPEN:
            self.completed_at_ms = at_ms

    def begin_attempt(self, at_ms: int) -> None:
        """Begin an attempt."""
        self.set_status(EntryStatus.PENDING, at_ms)
        self.last_attempt_at_ms = at_ms

    def trim(self, before: int, at_ms: int) -> None:
        """Record that iterations before one were removed."""
        self.trimmed_before = max(before, self.trimmed_before or 0)
        self.updated_at_ms = at_ms

    def roll_back(self, at_ms: int, *, failed: bool) -> None:
        """Record that the step was rolled back, or that its rollback failed."""
        self.updated_at_ms = at_ms
        if failed:
            self.rollback_failed_at_ms = at_ms
        else:
            self.rolled_back_at_ms = at_ms


class StepRow(_Step, kw_only=True, omit_defaults=True, gc=False):
    """A complete row of a step."""

    name: str
    type: str
    attempts: int
    max_attempts: int | None = None
    timeout_ms: int | None = None
    next_retry_at_ms: int | None = None
    wake_at_ms: int | None = None
    wait_event_type: str | None = None
    child_workflow_name: str | None = None
    child_instance_id: str | None = None
    ordinal: int
    sequence: int
    created_at_ms: int

    @override
    def set_status(self, status: EntryStatus, at_ms: int) -> None:
        """Set the status; no retry is scheduled. Result and error stay."""
        super().set_status(status, at_ms)
        self.next_retry_at_ms = None


class StepChange(_Step, kw_only=True, omit_defaults=True, gc=False):
    """A change of a step that Postgres may have; `settled` if it has a new result or error."""

    settled: bool = False

    @override
    def settle(
        self, status: EntryStatus, result: Json | None, failure: Failure | None, at_ms: int
    ) -> None:
        """End the step."""
        super().settle(status, result, failure, at_ms)
        self.settled = True


class Trim(msgspec.Struct, frozen=True, gc=False):
    """Removes a loop's steps in iterations before one."""

    workflow_name: str
    instance_id: str
    run_number: int
    step_key: str
    trim_before: int

    def covers(self, step_key: str) -> bool:
        """Whether a step belongs to a removed iteration."""
        iterations = keys_of_iterations((step_key,), self.step_key)
        return any(number < self.trim_before for _, number in iterations)


class Retry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a retry takes over from the previous run: steps by key, and unconsumed events."""

    workflow_name: str
    instance_id: str
    run_number: int
    kept: tuple[str, ...]
    reopened: tuple[str, ...]
    started_at_ms: int
    offset: int


class EventRow(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """An event that arrived in this batch."""

    workflow_name: str
    instance_id: str
    run_number: int
    id: str
    type: str
    payload: Json
    sequence: int
    created_at_ms: int
    delivered_at_ms: int | None = None
    consumed_by_step_key: str | None = None
    offset: int


class Delivery(msgspec.Struct, kw_only=True, gc=False):
    """The step that consumed an event from before this batch."""

    workflow_name: str
    instance_id: str
    run_number: int
    id: str
    delivered_at_ms: int
    consumed_by_step_key: str
    offset: int


class LogRow(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A log line."""

    workflow_name: str
    instance_id: str
    run_number: int
    id: str
    step_key: str | None
    attempt: int | None
    level: str
    category: str
    message: str
    data: Json | None
    is_replay: bool
    created_at_ms: int


class Deleted(msgspec.Struct, frozen=True, gc=False):
    """An instance to delete with everything before this batch."""

    workflow_name: str
    instance_id: str


class OwnerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The owner of a partition."""

    partition: int
    epoch: int
    owner: str
    workflows: tuple[str, ...]
    known: tuple[str, ...]
    params_schemas: dict[str, Json]
    limits: dict[str, dict[str, int | str | None]]
    claimed_at_ms: int
