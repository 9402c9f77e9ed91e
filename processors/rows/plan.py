"""Plan row changes from the events of workflow histories.

Each event adds to patches, where changes of the same row are merged. Histories may be cut anywhere
into batches: the resulting rows are the same as if events were applied one by one.

Rejections are only for the writer of the log and produce no row; neither does `step.now()`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from headwater.processors.rows.graph_events import derive, row_of
from headwater.processors.rows.patches import EventContext, Patches, Values, error_of
from headwater.processors.rows.token_plan import TOKEN_PLANNERS
from headwater.processors.runs.slots import SLOTS_ID
from headwater.processors.runs.state import TRANSITIONS
from headwater.processors.trace_context import context_of, run_context
from headwater.schemas.history import (
    BranchChanged,
    BranchFailed,
    BranchOutputSet,
    CancelRequested,
    CommandRejected,
    ContextChanged,
    EntriesCancelled,
    EntryCompleted,
    EntryErrored,
    EntryOpened,
    EntryRolledBack,
    EventReceived,
    Failure,
    ForkEnded,
    ForkOpened,
    GraphStarted,
    HistoryAppended,
    HostLost,
    InstanceDeleted,
    Json,
    LeaderEpochNoted,
    LogWritten,
    LoopAdvanced,
    OfGraph,
    OutcomeHeld,
    PartitionClaimed,
    PostsQueued,
    PostsSent,
    RollbackFailed,
    RollbackStarted,
    RoutingFailed,
    RunCompleted,
    RunErrored,
    RunMoved,
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
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus

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
#: Events that change no row except, perhaps, that of the instance.
INSTANCE_ONLY: Final[frozenset[type]] = frozenset(
    {
        BranchChanged,
        BranchFailed,
        BranchOutputSet,
        CancelRequested,
        CommandRejected,
        ContextChanged,
        ForkEnded,
        ForkOpened,
        GraphStarted,
        HostLost,
        LeaderEpochNoted,
        OutcomeHeld,
        PostsQueued,
        PostsSent,
        RollbackFailed,
        RollbackStarted,
        RoutingFailed,
        RunPaused,
        RunResumed,
        RunSuspended,
        SlotAsked,
        SlotGranted,
    }
)
#: The status after an event; None if it depends on the status before.
_LEADS_TO: Final[Mapping[type, RunStatus | None]] = {
    event: targets.pop() if len(targets) == 1 else None
    for event, targets in ((event, set(moves.values())) for event, moves in TRANSITIONS.items())
}


def plan_record(
    patches: Patches, appended: HistoryAppended, partition: int = 0, offset: int = 0
) -> None:
    """Add the changes of an admitted record to patches."""
    if appended.instance_id.startswith(SLOTS_ID):  # It counts slots and has no row of its own.
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
    in_graph, instance = False, None
    for context.index, event in enumerate(appended.events):
        kind = type(event)
        if kind in _NOT_OF_INSTANCE:
            instance = None
        else:
            # All events of a record are of one run, and have its time.
            instance = instance or patches.instance(context)
            if kind in TRANSITIONS and (kind is not StepFailed or not _will_retry(event)):
                _move(instance, kind)
        if kind not in INSTANCE_ONLY:
            PLANNERS[kind](patches, context, event)
        # The record that ends the run of a graph has events of its last tokens.
        in_graph = in_graph or isinstance(event, OfGraph)
        for position, derived in enumerate(derive(event, in_graph=in_graph)):
            patches.graph_events.append(row_of(context, position, derived))
        if kind not in _UNNUMBERED:
            context.sequence += 1


def _will_retry(event: object) -> bool:
    return isinstance(event, StepFailed) and event.retry_at_ms is not None


def _move(instance: Values, event: type) -> None:
    """Set the status that follows from an event.

    If the previous status matters and is not known here, the run becomes active unless it is
    paused, which only the statement finds out.
    """
    if "forced" in instance:
        before, moves = instance["status"], TRANSITIONS[event]
        instance["status"] = moves[before] if before in moves else before  # noqa: SIM401, no call
    else:
        status = _LEADS_TO[event]
        instance["status"] = RunStatus.ACTIVE if status is None else status
        if status is not None:
            instance["forced"] = True


# --- owners -------------------------------------------------------------------------------------


def _partition_claimed(patches: Patches, context: EventContext, event: PartitionClaimed) -> None:
    names = [workflow.name for workflow in event.workflows]
    row = {
        "partition": context.partition,
        "epoch": context.offset,
        "owner": event.owner,
        "workflows": names,
        "known": sorted(set(names)),
        "params_schemas": {
            workflow.name: workflow.params for workflow in event.workflows if workflow.params
        },
        "limits": {
            workflow.name: {"limit": workflow.limit, "key": workflow.limit_key}
            for workflow in event.workflows
            if workflow.limit is not None
        },
        "claimed_at": context.at_ms,
    }
    patches.set_owner(row)


# --- runs ---------------------------------------------------------------------------------------


def _run_started(patches: Patches, context: EventContext, event: RunStarted) -> None:
    values = context.values(
        params=event.params,
        started_at=context.at_ms,
        updated_at=context.at_ms,
        partition=context.partition,
        run_offset=context.offset,
    )
    run, cause = run_context(*context.run, event.seed, event.trace), context_of(event.trace)
    values["traceparent"] = run.traceparent
    values["parent_span_id"] = cause and cause.span_id
    if event.labels:
        values["labels"] = {label.name: label.value for label in event.labels}
    if event.deployment is not None:
        values["deployment_id"] = event.deployment.name
    if event.parent is not None:
        values["parent_workflow_name"] = event.parent.workflow
        values["parent_instance_id"] = event.parent.instance_id
        values["parent_run_number"] = event.parent.run_number
        values["parent_step_key"] = event.parent.key
    _move(values, RunStarted)
    patches.begin(context, values)
    if event.kept is not None:
        values["retries"] = True
        reopened = [entry.key for entry in event.reopened]
        patches.retry(context.values(kept=event.kept, reopened=reopened, started_at=context.at_ms))


def _run_moved(patches: Patches, context: EventContext, event: RunMoved) -> None:
    deployment = event.deployment
    name = None if deployment is None else deployment.name
    patches.instance(context)["deployment_id"] = name


def _instance_deleted(patches: Patches, context: EventContext, _: InstanceDeleted) -> None:
    patches.delete(context)


def _run_completed(patches: Patches, context: EventContext, event: RunCompleted) -> None:
    _end(patches, context, event.output, None)


def _run_failed(patches: Patches, context: EventContext, event: RunErrored | RunTerminated) -> None:
    _end(patches, context, None, event.failure)


def _end(
    patches: Patches, context: EventContext, output: Json | None, failure: Failure | None
) -> None:
    kept_until_ms = patches.retention.until_ms(context.workflow_name, context.at_ms)
    patches.instance(context).update(
        error_of(failure),
        output=output,
        completed_at=context.at_ms,
        retention_until=kept_until_ms,
    )


# --- steps --------------------------------------------------------------------------------------


def _put_attempt(
    patches: Patches,
    context: EventContext,
    event: StepStarted | StepCompleted | StepFailed,
    **values: Any,  # noqa: ANN401 (columns)
) -> None:
    """Set the row of a step that an attempt has changed."""
    row = context.values(
        step_key=event.key,
        name=event.name,
        type=EntryKind.DO,
        attempts=event.attempt,
        max_attempts=event.max_attempts or None,
        timeout_ms=event.timeout_ms or None,
        ordinal=event.ordinal,
        sequence=context.sequence,
        created_at=event.reached_at_ms,
        updated_at=context.at_ms,
    )
    if event.attempt == 1:
        row["last_attempt_at"] = event.reached_at_ms
    row.update(values)
    patches.put_step(context, event.key, row)


def _step_started(patches: Patches, context: EventContext, event: StepStarted) -> None:
    ended_attempts = event.attempt - 1
    _put_attempt(patches, context, event, status=EntryStatus.PENDING, attempts=ended_attempts)


def _step_completed(patches: Patches, context: EventContext, event: StepCompleted) -> None:
    ended = {"status": EntryStatus.COMPLETED, "completed_at": context.at_ms}
    _put_attempt(patches, context, event, result=event.result, **ended)


def _step_failed(patches: Patches, context: EventContext, event: StepFailed) -> None:
    if _will_retry(event):
        ended = {"status": EntryStatus.WAITING, "next_retry_at": event.retry_at_ms}
    else:
        ended = {"status": EntryStatus.ERRORED, "completed_at": context.at_ms}
    _put_attempt(patches, context, event, **error_of(event.failure), **ended)


def _steps_retried(patches: Patches, context: EventContext, event: StepsRetried) -> None:
    for key in event.keys:
        began = {"status": EntryStatus.PENDING, "last_attempt_at": context.at_ms}
        patches.change_step(context, key, {**began, "next_retry_at": None})


def _entry_opened(patches: Patches, context: EventContext, event: EntryOpened) -> None:
    if event.kind is EntryKind.NOW:
        patches.hide_step(context, event.key)
        return
    row = context.values(
        step_key=event.key,
        name=event.name,
        type=event.kind,
        status=EntryStatus.WAITING if event.kind in _WAITS else EntryStatus.PENDING,
        attempts=0,
        wake_at=event.wake_at_ms,
        wait_event_type=_wait_event_type(event),
        child_workflow_name=event.child.workflow if event.child else None,
        child_instance_id=event.child.instance_id if event.child else None,
        ordinal=event.ordinal,
        sequence=context.sequence,
        created_at=context.at_ms,
        updated_at=context.at_ms,
    )
    patches.put_step(context, event.key, row)


def _wait_event_type(event: EntryOpened) -> str | None:
    """Return the awaited type; a JSON list if the author gave a list, which then has a limit."""
    types = event.event_types
    if not types:
        return None
    if event.limit is None and len(types) == 1:
        return types[0]
    return msgspec.json.encode(types).decode()


def _entry_completed(patches: Patches, context: EventContext, event: EntryCompleted) -> None:
    ended = _ended(context, EntryStatus.COMPLETED)
    patches.change_step(context, event.key, {**ended, "result": event.result, **error_of(None)})
    for event_id in event.consumed:
        patches.deliver(context, event_id, event.key)


def _entry_errored(patches: Patches, context: EventContext, event: EntryErrored) -> None:
    ended = _ended(context, EntryStatus.ERRORED)
    patches.change_step(context, event.key, {**ended, "result": None, **error_of(event.failure)})


def _entries_cancelled(patches: Patches, context: EventContext, event: EntriesCancelled) -> None:
    for key in event.keys:
        patches.change_step(context, key, _ended(context, EntryStatus.CANCELLED))


def _ended(context: EventContext, status: EntryStatus) -> Values:
    return {"status": status, "completed_at": context.at_ms, "next_retry_at": None}


def _loop_advanced(patches: Patches, context: EventContext, event: LoopAdvanced) -> None:
    if event.trim_before > 0:
        patches.trim(context, event.key, event.trim_before)


def _entry_rolled_back(patches: Patches, context: EventContext, event: EntryRolledBack) -> None:
    name = "rolled_back_at" if event.failure is None else "rollback_failed_at"
    patches.change_step(context, event.key, {name: context.at_ms})


# --- events and log lines -----------------------------------------------------------------------


def _event_received(patches: Patches, context: EventContext, event: EventReceived) -> None:
    row = context.values(
        id=event.event_id,
        type=event.type,
        payload=event.payload,
        sequence=context.sequence,
        created_at=event.sent_at_ms,
    )
    patches.put_event(context, event.event_id, row)


def _log_written(patches: Patches, context: EventContext, event: LogWritten) -> None:
    row = context.values(
        # Zero-padded, so that ids sort as text in the order of the log.
        id=f"{context.partition:05}-{context.offset:015}-{context.index:06}",
        step_key=event.step_key,
        attempt=event.attempt,
        level=event.level,
        category=event.category,
        message=event.message,
        data=event.data,
        is_replay=event.is_replay,
        created_at=context.at_ms,
    )
    del row["offset"]
    patches.log(row)


#: Planners by event; `INSTANCE_ONLY` has the other events.
PLANNERS: Final[Mapping[type, Callable[[Patches, EventContext, Any], None]]] = {
    PartitionClaimed: _partition_claimed,
    RunStarted: _run_started,
    RunMoved: _run_moved,
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
    InstanceDeleted: _instance_deleted,
    **TOKEN_PLANNERS,
}
