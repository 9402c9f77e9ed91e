"""What the events of workflow histories say of rows, decided without Postgres.

Theory of operation: most events change a row that only Postgres knows. So they are told, one after
the other, to the batch's patches, and what they say of the same row is merged there. Batches may be
cut anywhere: whatever the cut, the rows are those that come of all events one by one.

What the log holds for its writer alone (rejections) leads to no row, and `step.now()` to none that
is shown.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from headwater.projections.projector.plan import Plan, works
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.records import LogRecord, SqlRow, refusal
from headwater.projections.workflows.history import PROJECTION, HistoryRecord, read_history
from headwater.projections.workflows.patches import Patches, Told
from headwater.projections.workflows.rows import (
    EventRow,
    InstanceRow,
    LogRow,
    OwnerRow,
    Retry,
    StepRow,
)
from headwater.schemas.history import (
    CommandRejected,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryKind,
    EntryOpened,
    EntryRolledBack,
    EventReceived,
    HistoryAppended,
    LogWritten,
    LoopAdvanced,
    PartitionClaimed,
    PostsSent,
    RunCompleted,
    RunErrored,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    StepCompleted,
    StepFailed,
    StepsRetried,
)
from headwater.schemas.statuses import EntryStatus, RunStatus
from headwater.schemas.topics import WORKFLOW_HISTORY

__all__ = ["WORKFLOWS", "plan_history"]

#: Kinds that wait for something outside the code; the others wait for what lies beneath them.
_WAITS: Final = frozenset({EntryKind.SLEEP, EntryKind.WAIT, EntryKind.CHILD})
#: What does not happen to an instance that is there: a run begins, or none is spoken of.
_APART: Final = frozenset({RunStarted, PartitionClaimed, CommandRejected})
#: What takes no sequence.
_UNNUMBERED: Final = frozenset({PostsSent, PartitionClaimed, CommandRejected})


def plan_history(records: Iterable[LogRecord]) -> Plan:
    """Plans records of `workflow-history`, as `read_history` gives them."""
    patches = Patches()
    refused: list[SqlRow] = []
    for record in records:
        assert isinstance(record, HistoryRecord), "read_history comes first"  # noqa: S101
        if record.appended is None:
            refused.append(refusal(record, record.error))
        else:
            _tell(patches, record, record.appended)
    statements = (*patches.works(), *works("projection_errors", refused))
    return Plan(works=statements, unreadable=len(refused))


def _tell(patches: Patches, record: HistoryRecord, appended: HistoryAppended) -> None:
    told = Told(
        appended.workflow,
        appended.instance_id,
        appended.run_number,
        appended.at_ms,
        record.partition,
        record.offset,
        appended.sequence,
    )
    for told.index, event in enumerate(appended.events):
        kind = type(event)
        if kind not in _APART:
            patches.instance(told)
        tell = _TELL.get(kind)
        if tell is not None:
            tell(patches, told, event)
        if kind not in _UNNUMBERED:
            told.sequence += 1


# --- owners -------------------------------------------------------------------------------------


def _partition_claimed(patches: Patches, told: Told, event: PartitionClaimed) -> None:
    row = OwnerRow(
        partition=told.partition,
        epoch=told.offset,
        owner=event.owner,
        workflows=event.workflows,
        claimed_at_ms=told.at_ms,
    )
    patches.own(row)


# --- runs ---------------------------------------------------------------------------------------


def _run_started(patches: Patches, told: Told, event: RunStarted) -> None:
    row = InstanceRow(
        workflow_name=told.workflow_name,
        instance_id=told.instance_id,
        run_number=told.run_number,
        params=event.params,
        started_at_ms=told.at_ms,
        updated_at_ms=told.at_ms,
        partition=told.partition,
        offset=told.offset,
        retries=event.kept is not None,
    )
    row.force(RunStatus.ACTIVE)
    row.belong(event.parent)
    patches.begin(row)
    if event.kept is not None:
        patches.retry(_retry(told, event, event.kept))


def _retry(told: Told, event: RunStarted, kept: tuple[str, ...]) -> Retry:
    return Retry(
        workflow_name=told.workflow_name,
        instance_id=told.instance_id,
        run_number=told.run_number,
        kept=kept,
        reopened=tuple(each.key for each in event.reopened),
        started_at_ms=told.at_ms,
        offset=told.offset,
    )


def _run_suspended(patches: Patches, told: Told, _: RunSuspended) -> None:
    patches.instance(told).move(RunStatus.WAITING)


def _run_paused(patches: Patches, told: Told, _: RunPaused) -> None:
    patches.instance(told).force(RunStatus.PAUSED)


def _run_resumed(patches: Patches, told: Told, _: RunResumed) -> None:
    patches.instance(told).force(RunStatus.ACTIVE)


def _run_terminated(patches: Patches, told: Told, _: RunTerminated) -> None:
    patches.instance(told).end(RunStatus.TERMINATED, None, None, told.at_ms)


def _run_completed(patches: Patches, told: Told, event: RunCompleted) -> None:
    patches.instance(told).end(RunStatus.COMPLETE, event.output, None, told.at_ms)


def _run_errored(patches: Patches, told: Told, event: RunErrored) -> None:
    patches.instance(told).end(RunStatus.ERRORED, None, event.failure, told.at_ms)


# --- steps --------------------------------------------------------------------------------------


def _step(told: Told, event: StepCompleted | StepFailed, status: str) -> StepRow:
    return StepRow(
        workflow_name=told.workflow_name,
        instance_id=told.instance_id,
        run_number=told.run_number,
        step_key=event.key,
        name=event.name,
        type=EntryKind.DO.value,
        status=status,
        attempts=event.attempt,
        max_attempts=event.max_attempts or None,
        timeout_ms=event.timeout_ms or None,
        ordinal=event.ordinal,
        sequence=told.sequence,
        created_at_ms=event.reached_at_ms,
        updated_at_ms=told.at_ms,
        offset=told.offset,
    )


def _step_completed(patches: Patches, told: Told, event: StepCompleted) -> None:
    row = _step(told, event, EntryStatus.COMPLETED)
    row.result = event.result
    patches.put_step(told, row)
    patches.instance(told).move(RunStatus.ACTIVE)


def _step_failed(patches: Patches, told: Told, event: StepFailed) -> None:
    last = event.retry_at_ms is None
    row = _step(told, event, EntryStatus.ERRORED if last else EntryStatus.WAITING)
    row.next_retry_at_ms = event.retry_at_ms
    row.fail(event.failure)
    patches.put_step(told, row)
    if last:
        patches.instance(told).move(RunStatus.ACTIVE)


def _steps_retried(patches: Patches, told: Told, event: StepsRetried) -> None:
    for key in event.keys:
        step = patches.step(told, key)
        if step is not None:
            step.become(EntryStatus.PENDING, told.at_ms)
    patches.instance(told).move(RunStatus.ACTIVE)


def _entry_opened(patches: Patches, told: Told, event: EntryOpened) -> None:
    if event.kind is EntryKind.NOW:
        patches.hide_step(told, event.key)
        return
    row = StepRow(
        workflow_name=told.workflow_name,
        instance_id=told.instance_id,
        run_number=told.run_number,
        step_key=event.key,
        name=event.name,
        type=event.kind.value,
        status=EntryStatus.WAITING if event.kind in _WAITS else EntryStatus.PENDING,
        attempts=0,
        wake_at_ms=event.wake_at_ms,
        wait_event_type=_wait_event_type(event),
        child_workflow_name=event.child.workflow if event.child else None,
        child_instance_id=event.child.instance_id if event.child else None,
        ordinal=event.ordinal,
        sequence=told.sequence,
        created_at_ms=told.at_ms,
        updated_at_ms=told.at_ms,
        offset=told.offset,
    )
    patches.put_step(told, row)


def _wait_event_type(event: EntryOpened) -> str | None:
    """The type that is waited for; a list where the author gave one, which a limit tells."""
    types = event.event_types
    if not types:
        return None
    if event.limit is None and len(types) == 1:
        return types[0]
    return msgspec.json.encode(types).decode()


def _entry_completed(patches: Patches, told: Told, event: EntryCompleted) -> None:
    step = patches.step(told, event.key)
    if step is not None:
        step.settle(EntryStatus.COMPLETED, event.result, None, told.at_ms)
    for event_id in event.consumed:
        patches.deliver(told, event_id, event.key)
    patches.instance(told).move(RunStatus.ACTIVE)


def _entry_errored(patches: Patches, told: Told, event: EntryErrored) -> None:
    step = patches.step(told, event.key)
    if step is not None:
        step.settle(EntryStatus.ERRORED, None, event.failure, told.at_ms)
    patches.instance(told).move(RunStatus.ACTIVE)


def _entries_cancelled(patches: Patches, told: Told, event: EntriesCancelled) -> None:
    for key in event.keys:
        step = patches.step(told, key)
        if step is not None:
            step.become(EntryStatus.CANCELLED, told.at_ms)


def _loop_advanced(patches: Patches, told: Told, event: LoopAdvanced) -> None:
    if event.trim_before > 0:
        patches.trim(told, event.key, event.trim_before)
        step = patches.step(told, event.key)
        if step is not None:
            step.trim(event.trim_before, told.at_ms)


def _entry_rolled_back(patches: Patches, told: Told, event: EntryRolledBack) -> None:
    step = patches.step(told, event.key)
    if step is not None:
        step.roll_back(told.at_ms)


# --- events and lines ---------------------------------------------------------------------------


def _event_received(patches: Patches, told: Told, event: EventReceived) -> None:
    row = EventRow(
        workflow_name=told.workflow_name,
        instance_id=told.instance_id,
        run_number=told.run_number,
        id=event.event_id,
        type=event.type,
        payload=event.payload,
        sequence=told.sequence,
        created_at_ms=event.sent_at_ms,
        offset=told.offset,
    )
    patches.put_event(told, row)


def _log_written(patches: Patches, told: Told, event: LogWritten) -> None:
    row = LogRow(
        workflow_name=told.workflow_name,
        instance_id=told.instance_id,
        run_number=told.run_number,
        # So wide that texts compare as numbers, for as long as anybody will write.
        id=f"{told.partition:05}-{told.offset:015}-{told.index:06}",
        step_key=event.step_key,
        attempt=event.attempt,
        level=event.level,
        category=event.category,
        message=event.message,
        data=event.data,
        is_replay=event.is_replay,
        created_at_ms=told.at_ms,
    )
    patches.log(row)


#: Events that are not named say of rows only that something happened to the instance.
_TELL: Final[dict[type, Callable[[Patches, Told, Any], None]]] = {
    PartitionClaimed: _partition_claimed,
    RunStarted: _run_started,
    RunSuspended: _run_suspended,
    RunPaused: _run_paused,
    RunResumed: _run_resumed,
    RunTerminated: _run_terminated,
    RunCompleted: _run_completed,
    RunErrored: _run_errored,
    StepCompleted: _step_completed,
    StepFailed: _step_failed,
    StepsRetried: _steps_retried,
    EntryOpened: _entry_opened,
    EntryCompleted: _entry_completed,
    EntryErrored: _entry_errored,
    EntriesCancelled: _entries_cancelled,
    LoopAdvanced: _loop_advanced,
    EntryRolledBack: _entry_rolled_back,
    EventReceived: _event_received,
    LogWritten: _log_written,
}

#: Instances, steps, events and lines of workflows.
WORKFLOWS: Final = Projection(
    name=PROJECTION,
    group="headwater-workflow-projector",
    topics=(WORKFLOW_HISTORY,),
    read=read_history,
    plan=plan_history,
)
