"""Plan row changes from the events of workflow histories, without access to Postgres.

Most events change a row that only Postgres has. So each event adds to the batch's patches, where
changes of the same row are merged. Batches may be cut anywhere: the resulting rows are the same as
if events were applied one by one.

Rejections are only for the writer of the log and produce no row; neither does `step.now()`.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from headwater.processors.runs.durations import KEEP_FOREVER, Retention
from headwater.processors.runs.state import TRANSITIONS
from headwater.projections.projector.projection import (
    LogRecord,
    Plan,
    Projection,
    SqlRow,
    refusal,
    row_statements,
)
from headwater.projections.workflows.history import PROJECTION, HistoryRecord, read_history
from headwater.projections.workflows.patches import EventContext, Patches, is_slots_instance
from headwater.projections.workflows.rows import (
    Deleted,
    EventRow,
    InstanceRow,
    LogRow,
    OwnerRow,
    Retry,
    StepRow,
)
from headwater.projections.workflows.token_plan import TOKEN_PLANNERS
from headwater.schemas.history import (
    BranchChanged,
    CancelRequested,
    CommandRejected,
    ContextChanged,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EntryRolledBack,
    EventReceived,
    ForkEnded,
    ForkOpened,
    GraphStarted,
    HistoryAppended,
    HostLost,
    InstanceDeleted,
    LeaderEpochNoted,
    LogWritten,
    LoopAdvanced,
    PartitionClaimed,
    PostsQueued,
    PostsSent,
    RollbackFailed,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SlotAsked,
    SlotGranted,
    StepCompleted,
    StepFailed,
    StepsRetried,
    StepStarted,
)
from headwater.schemas.statuses import OPEN, EntryKind, EntryStatus
from headwater.schemas.topics import WORKFLOW_HISTORY

#: Kinds that wait for something outside the code; the others wait for entries inside them.
_WAITS: Final = frozenset({EntryKind.SLEEP, EntryKind.WAIT, EntryKind.CHILD})
#: Events that change no existing instance: a run begins, or they belong to no instance.
_NOT_OF_INSTANCE: Final = frozenset(
    {RunStarted, PartitionClaimed, CommandRejected, InstanceDeleted, LeaderEpochNoted}
)
#: Events without a sequence number.
_UNNUMBERED: Final = frozenset(
    {PostsSent, PartitionClaimed, CommandRejected, InstanceDeleted, LeaderEpochNoted}
)


def plan_history(records: Iterable[LogRecord], retention: Retention = KEEP_FOREVER) -> Plan:
    """Plan records of `workflow-history`, as returned by `read_history`."""
    patches = Patches(retention)
    refused: list[SqlRow] = []
    for record in records:
        assert isinstance(record, HistoryRecord), "read_history comes first"  # noqa: S101
        if record.appended is None:
            refused.append(refusal(record, record.error))
        else:
            plan_record(patches, record.appended, record.partition, record.offset)
    statements = (*patches.statements(), *row_statements("projection_errors", refused))
    return Plan(statements=statements, unreadable=len(refused))


def plan_record(
    patches: Patches, appended: HistoryAppended, partition: int = 0, offset: int = 0
) -> None:
    """Add the changes of an admitted record to patches."""
    if is_slots_instance(appended.instance_id):
        patches.slots.add_record(appended)
        return
    context = EventContext(
        appended.workflow,
        appended.instance_id,
        appended.run_number,
        appended.at_ms,
        partition,
        offset,
        appended.sequence,
    )
    for context.index, event in enumerate(appended.events):
        kind = type(event)
        if kind not in _NOT_OF_INSTANCE:
            instance = patches.instance(context)
            if kind in TRANSITIONS and not _will_retry(event):
                instance.move(kind)
        _PLANNERS[kind](patches, context, event)
        if kind not in _UNNUMBERED:
            context.sequence += 1


def _will_retry(event: object) -> bool:
    return isinstance(event, StepFailed) and event.retry_at_ms is not None


# --- owners -------------------------------------------------------------------------------------


def _partition_claimed(patches: Patches, context: EventContext, event: PartitionClaimed) -> None:
    row = OwnerRow(
        partition=context.partition,
        epoch=context.offset,
        owner=event.owner,
        workflows=tuple(workflow.name for workflow in event.workflows),
        known=tuple(sorted({workflow.name for workflow in event.workflows})),
        params_schemas={
            workflow.name: workflow.params for workflow in event.workflows if workflow.params
        },
        limits={
            workflow.name: {"limit": workflow.limit, "key": workflow.limit_key}
            for workflow in event.workflows
            if workflow.limit is not None
        },
        claimed_at_ms=context.at_ms,
    )
    patches.set_owner(row)


# --- runs ---------------------------------------------------------------------------------------


def _run_started(patches: Patches, context: EventContext, event: RunStarted) -> None:
    row = InstanceRow(
        workflow_name=context.workflow_name,
        instance_id=context.instance_id,
        run_number=context.run_number,
        params=event.params,
        started_at_ms=context.at_ms,
        updated_at_ms=context.at_ms,
        partition=context.partition,
        run_offset=context.offset,
        offset=context.offset,
        retries=event.kept is not None,
        deployment_id=None if event.deployment is None else event.deployment.name,
        labels={label.name: label.value for label in event.labels},
    )
    row.move(RunStarted)
    row.set_parent(event.parent)
    patches.begin(row)
    if event.kept is not None:
        patches.retry(_retry(context, event, event.kept))


def _retry(context: EventContext, event: RunStarted, kept: tuple[str, ...]) -> Retry:
    return Retry(
        workflow_name=context.workflow_name,
        instance_id=context.instance_id,
        run_number=context.run_number,
        kept=kept,
        reopened=tuple(entry.key for entry in event.reopened),
        started_at_ms=context.at_ms,
        offset=context.offset,
    )


def _instance_deleted(patches: Patches, context: EventContext, _: InstanceDeleted) -> None:
    patches.delete(Deleted(context.workflow_name, context.instance_id))


def _run_completed(patches: Patches, context: EventContext, event: RunCompleted) -> None:
    patches.end(context, event.output, None)


def _run_failed(patches: Patches, context: EventContext, event: RunErrored | RunTerminated) -> None:
    patches.end(context, None, event.failure)


# --- steps --------------------------------------------------------------------------------------


def _step(
    context: EventContext,
    event: StepStarted | StepCompleted | StepFailed,
    status: EntryStatus,
    attempts: int,
) -> StepRow:
    return StepRow(
        workflow_name=context.workflow_name,
        instance_id=context.instance_id,
        run_number=context.run_number,
        step_key=event.key,
        name=event.name,
        type=EntryKind.DO.value,
        status=status,
        attempts=attempts,
        max_attempts=event.max_attempts or None,
        timeout_ms=event.timeout_ms or None,
        ordinal=event.ordinal,
        sequence=context.sequence,
        created_at_ms=event.reached_at_ms,
        updated_at_ms=context.at_ms,
        last_attempt_at_ms=event.reached_at_ms if event.attempt == 1 else None,
        completed_at_ms=None if status in OPEN else context.at_ms,
        offset=context.offset,
    )


def _step_started(patches: Patches, context: EventContext, event: StepStarted) -> None:
    patches.put_step(context, _step(context, event, EntryStatus.PENDING, event.attempt - 1))


def _step_completed(patches: Patches, context: EventContext, event: StepCompleted) -> None:
    row = _step(context, event, EntryStatus.COMPLETED, event.attempt)
    row.result = event.result
    patches.put_step(context, row)


def _step_failed(patches: Patches, context: EventContext, event: StepFailed) -> None:
    status = EntryStatus.WAITING if _will_retry(event) else EntryStatus.ERRORED
    row = _step(context, event, status, event.attempt)
    row.next_retry_at_ms = event.retry_at_ms
    row.fail(event.failure)
    patches.put_step(context, row)


def _steps_retried(patches: Patches, context: EventContext, event: StepsRetried) -> None:
    for key in event.keys:
        step = patches.step(context, key)
        if step is not None:
            step.begin_attempt(context.at_ms)


def _entry_opened(patches: Patches, context: EventContext, event: EntryOpened) -> None:
    if event.kind is EntryKind.NOW:
        patches.hide_step(context, event.key)
        return
    row = StepRow(
        workflow_name=context.workflow_name,
        instance_id=context.instance_id,
        run_number=context.run_number,
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
        sequence=context.sequence,
        created_at_ms=context.at_ms,
        updated_at_ms=context.at_ms,
        offset=context.offset,
    )
    patches.put_step(context, row)


def _wait_event_type(event: EntryOpened) -> str | None:
    """Return the awaited type; a JSON list if the author gave a list, which then has a limit."""
    types = event.event_types
    if not types:
        return None
    if event.limit is None and len(types) == 1:
        return types[0]
    return msgspec.json.encode(types).decode()


def _entry_completed(patches: Patches, context: EventContext, event: EntryCompleted) -> None:
    step = patches.step(context, event.key)
    if step is not None:
        step.settle(EntryStatus.COMPLETED, event.result, None, context.at_ms)
    for event_id in event.consumed:
        patches.deliver(context, event_id, event.key)


def _entry_errored(patches: Patches, context: EventContext, event: EntryErrored) -> None:
    step = patches.step(context, event.key)
    if step is not None:
        step.settle(EntryStatus.ERRORED, None, event.failure, context.at_ms)


def _entries_cancelled(patches: Patches, context: EventContext, event: EntriesCancelled) -> None:
    for key in event.keys:
        step = patches.step(context, key)
        if step is not None:
            step.set_status(EntryStatus.CANCELLED, context.at_ms)


def _loop_advanced(patches: Patches, context: EventContext, event: LoopAdvanced) -> None:
    if event.trim_before > 0:
        patches.trim(context, event.key, event.trim_before)
        step = patches.step(context, event.key)
        if step is not None:
            step.trim(event.trim_before, context.at_ms)


def _entry_rolled_back(patches: Patches, context: EventContext, event: EntryRolledBack) -> None:
    step = patches.step(context, event.key)
    if step is not None:
        step.roll_back(context.at_ms, failed=event.failure is not None)


# --- events and log lines -----------------------------------------------------------------------


def _event_received(patches: Patches, context: EventContext, event: EventReceived) -> None:
    row = EventRow(
        workflow_name=context.workflow_name,
        instance_id=context.instance_id,
        run_number=context.run_number,
        id=event.event_id,
        type=event.type,
        payload=event.payload,
        sequence=context.sequence,
        created_at_ms=event.sent_at_ms,
        offset=context.offset,
    )
    patches.put_event(context, row)


def _log_written(patches: Patches, context: EventContext, event: LogWritten) -> None:
    row = LogRow(
        workflow_name=context.workflow_name,
        instance_id=context.instance_id,
        run_number=context.run_number,
        # Zero-padded, so that ids sort as text in the order of the log.
        id=f"{context.partition:05}-{context.offset:015}-{context.index:06}",
        step_key=event.step_key,
        attempt=event.attempt,
        level=event.level,
        category=event.category,
        message=event.message,
        data=event.data,
        is_replay=event.is_replay,
        created_at_ms=context.at_ms,
    )
    patches.log(row)


def _instance_only(patches: Patches, context: EventContext, event: object) -> None:
    """Change no row except the instance's."""


_PLANNERS: Final[dict[type, Callable[[Patches, EventContext, Any], None]]] = {
    PartitionClaimed: _partition_claimed,
    RunStarted: _run_started,
    RunSuspended: _instance_only,
    RunPaused: _instance_only,
    RunResumed: _instance_only,
    RunTerminated: _run_failed,
    RunCompleted: _run_completed,
    RunErrored: _run_failed,
    StepStarted: _step_started,
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
    CommandRejected: _instance_only,
    InstanceDeleted: _instance_deleted,
    LeaderEpochNoted: _instance_only,
    PostsQueued: _instance_only,
    PostsSent: _instance_only,
    SlotAsked: _instance_only,
    SlotGranted: _instance_only,
    CancelRequested: _instance_only,
    RollbackStarted: _instance_only,
    RollbackFailed: _instance_only,
    HostLost: _instance_only,
    GraphStarted: _instance_only,
    ForkOpened: _instance_only,
    ContextChanged: _instance_only,
    BranchChanged: _instance_only,
    ForkEnded: _instance_only,
    **TOKEN_PLANNERS,
}

#: Instances, steps, events and log lines of workflows.
WORKFLOWS: Final = Projection(
    name=PROJECTION,
    group="headwater-workflow-projector",
    topics=(WORKFLOW_HISTORY,),
    read=read_history,
    plan=plan_history,
    is_waited_for=True,
)


def workflows_kept(retention: Retention) -> Projection:
    """Return the projection with a retention for ended instances."""
    return replace(WORKFLOWS, plan=partial(plan_history, retention=retention))
