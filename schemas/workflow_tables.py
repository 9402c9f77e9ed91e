"""The tables of workflows, each declared once.

A struct declares the columns of a table: name, type, and a comment, which becomes the comment in
Postgres. `table_of` adds what a struct cannot express. From a declaration follow the table's DDL,
the statements that write and copy rows, and the columns that readers select. Answers of the API
(`schemas.answers`) take the columns that are named like their fields.

Structs only declare. A row in memory is a dict, so that it can have some of the columns: most
events change a row that only Postgres has (`processors.rows`).
"""

from typing import Annotated, Final, Literal

import msgspec

from headwater.schemas.workflow_columns import (
    CLEARED,
    Integer,
    JsonText,
    Key,
    Labels,
    Moment,
    table_of,
)


class WorkflowInstance(msgspec.Struct):
    """Instances of workflows with their current run. Topic workflow-history."""

    #: The workflow.
    workflow_name: Key
    #: The instance, unique within its workflow.
    instance_id: Key
    #: Number of the current run; the first is 0.
    run_number: Integer
    #: active, waiting, paused, complete, errored or terminated.
    status: Literal["active", "waiting", "paused", "complete", "errored", "terminated"]
    #: Parameters of the run, unchanged JSON text.
    params: JsonText
    #: Output of the run, unchanged JSON text.
    output: JsonText | None
    #: Name of the error with which the run ended.
    error_name: str | None
    #: Message of the error; NUL is replaced by U+FFFD.
    error_message: str | None
    #: Additional data of the error, such as a join's.
    error_detail: JsonText | None
    #: Workflow of the parent; null unless this is a child.
    parent_workflow_name: str | None
    #: The parent.
    parent_instance_id: str | None
    #: The parent's run.
    parent_run_number: Integer | None
    #: The entry of the parent that started it.
    parent_step_key: str | None
    #: Deployment of the current run, or app (--app); null if it follows the newest code.
    deployment_id: Key | None
    #: W3C trace context of the current run: header traceparent.
    traceparent: str | None
    #: The span that started it; null if it began its trace.
    parent_span_id: str | None
    #: Labels for searches: texts by name.
    labels: Labels
    #: When the first run began.
    created_at: Moment
    #: When its last event happened.
    updated_at: Moment
    #: When the current run began; for a retry, when the run that it continues began.
    started_at: Moment
    #: When the current run ended.
    completed_at: Moment | None
    #: When a prune may remove the ended instance; null keeps it indefinitely.
    retention_until: Moment | None
    #: Partition of workflow-history.
    partition: Integer
    #: Offset of the record that began the current run.
    run_offset: int
    #: Offset of the last applied record.
    offset: int


class WorkflowRun(msgspec.Struct):
    """Earlier runs of instances, as they were in workflow_instance when the next run began."""

    #: The workflow.
    workflow_name: Key
    #: The instance.
    instance_id: Key
    #: The run; the first is 0.
    run_number: Integer
    #: Status when the next run began.
    status: str
    #: Parameters of the run.
    params: JsonText
    #: Output of the run.
    output: JsonText | None
    #: Name of the error with which it ended.
    error_name: str | None
    #: Message of the error; NUL is replaced by U+FFFD.
    error_message: str | None
    #: Additional data of the error.
    error_detail: JsonText | None
    #: Workflow of the parent.
    parent_workflow_name: str | None
    #: The parent.
    parent_instance_id: str | None
    #: The parent's run.
    parent_run_number: Integer | None
    #: The entry of the parent that started it.
    parent_step_key: str | None
    #: Deployment of the run, or app (--app); null if it follows the newest code.
    deployment_id: Key | None
    #: W3C trace context of the run: header traceparent.
    traceparent: str | None
    #: The span that started it; null if it began its trace.
    parent_span_id: str | None
    #: When its last event happened.
    updated_at: Moment
    #: When it began.
    started_at: Moment
    #: When it ended; null if it was restarted before it ended.
    completed_at: Moment | None
    #: Partition of workflow-history.
    partition: Integer
    #: Offset of the record that began it.
    run_offset: int
    #: Offset of its last record.
    offset: int


class WorkflowStep(msgspec.Struct):
    """Entries of code workflows: steps, sleeps, waits, loops and others. Topic workflow-history."""

    #: The workflow.
    workflow_name: Key
    #: The instance.
    instance_id: Key
    #: The run.
    run_number: Integer
    #: Path of names, for example pages/~3/fetch.
    step_key: Key
    #: The author's name for it.
    name: str
    #: do, sleep, wait_for_event, loop, join, race, child, checkpoint or removed.
    type: str
    #: pending, waiting, completed, errored or cancelled.
    status: Literal["pending", "waiting", "completed", "errored", "cancelled"]
    #: Ended attempts; 0 for all types but do.
    attempts: Integer
    #: Maximum attempts; null without a limit.
    max_attempts: Integer | None
    #: Timeout of an attempt; null without one.
    timeout_ms: int | None
    #: When the next attempt begins, while it is scheduled.
    next_retry_at: Annotated[Moment | None, CLEARED]
    #: When a sleep ends or a wait times out; kept after its end.
    wake_at: Moment | None
    #: Awaited event type; a JSON list if the author gave a list.
    wait_event_type: str | None
    #: Workflow of the child that it started.
    child_workflow_name: str | None
    #: The child that it started.
    child_instance_id: str | None
    #: Its result, unchanged JSON text.
    result: Annotated[JsonText | None, CLEARED]
    #: Name of its error; for do, of the last attempt's.
    error_name: Annotated[str | None, CLEARED]
    #: Message of the error; NUL is replaced by U+FFFD.
    error_message: Annotated[str | None, CLEARED]
    #: Additional data of the error, such as a join's.
    error_detail: Annotated[JsonText | None, CLEARED]
    #: The order in which entries were first reached.
    ordinal: int
    #: Number, within the run, of the event that showed it first; breaks ties of ordinals. Negative
    #: for entries that a retry copied from the previous run, in the order of that run.
    sequence: int
    #: When it was first reached.
    created_at: Moment
    #: When it last changed.
    updated_at: Moment
    #: When its latest attempt began; null for all but do.
    last_attempt_at: Moment | None
    #: When it ended; a later rollback does not change it.
    completed_at: Annotated[Moment | None, CLEARED]
    #: When its rollback was completed.
    rolled_back_at: Annotated[Moment | None, CLEARED]
    #: When its rollback failed for good, after the last attempt of its handler.
    rollback_failed_at: Annotated[Moment | None, CLEARED]
    #: Of a loop: earlier iterations were trimmed, and their entries have no rows; null if none was.
    trimmed_before: int | None
    #: Offset of the last record that changed the row, in the instance's partition of
    #: workflow-history.
    offset: int


class WorkflowToken(msgspec.Struct):
    """Tokens of graph workflows, each at a node, with their status. Topic workflow-history."""

    #: The workflow.
    workflow_name: Key
    #: The instance.
    instance_id: Key
    #: The run.
    run_number: Integer
    #: Number within the run, in the order of creation.
    id: int
    #: The node.
    node_ref: str
    #: The task of that node.
    task: str | None
    #: The workflow that the node starts, if it has no task.
    subworkflow: str | None
    #: pending, dispatched, executing, waiting_for_siblings, waiting_for_subworkflow,
    #: waiting_for_time, waiting_for_event, completed, failed, timed_out or cancelled.
    status: Literal[
        "pending",
        "dispatched",
        "executing",
        "waiting_for_siblings",
        "waiting_for_subworkflow",
        "waiting_for_time",
        "waiting_for_event",
        "completed",
        "failed",
        "timed_out",
        "cancelled",
    ]
    #: Its path, extended by .node.branch at each fork.
    path_id: str
    #: The token that it follows.
    parent_token_id: int | None
    #: The group of its innermost fork.
    sibling_group: str | None
    #: Its branch in that fork; the first is 0.
    branch_index: Integer
    #: Number of branches of that fork.
    branch_total: Integer
    #: Transitions taken since its parent: an object of counts by ref. Those of its ancestors
    #: are in their rows.
    iteration_counts: JsonText
    #: Number of its latest attempt; 0 before the first.
    attempts: Integer
    #: Input of its task, unchanged JSON text.
    input: JsonText | None
    #: Result of its task or workflow, unchanged JSON text.
    result: Annotated[JsonText | None, CLEARED]
    #: Name of the error of its latest attempt.
    error_name: Annotated[str | None, CLEARED]
    #: Message of the error; NUL is replaced by U+FFFD.
    error_message: Annotated[str | None, CLEARED]
    #: Additional data of the error.
    error_detail: Annotated[JsonText | None, CLEARED]
    #: When the next attempt begins, while it is scheduled.
    next_retry_at: Annotated[Moment | None, CLEARED]
    #: When its wait ends or times out; kept after its end.
    wake_at: Moment | None
    #: Type of the event that it waits for; kept after its wait.
    event_type: Annotated[str | None, CLEARED]
    #: Why it was cancelled.
    reason: Annotated[str | None, CLEARED]
    #: Its status after a retry of its run; null if it had ended before.
    retry_status: Annotated[str | None, CLEARED]
    #: Workflow of the child that it started.
    child_workflow_name: Annotated[str | None, CLEARED]
    #: The child that it started.
    child_instance_id: Annotated[str | None, CLEARED]
    #: Of a job: idempotency token for other systems, the same for all attempts.
    idempotency_token: Annotated[str | None, CLEARED]
    #: External worker that holds the lease.
    worker: Annotated[str | None, CLEARED]
    #: When the lease expires.
    lease_until: Annotated[Moment | None, CLEARED]
    #: When it was created.
    created_at: Moment
    #: When it last changed.
    updated_at: Moment
    #: When it ended.
    completed_at: Annotated[Moment | None, CLEARED]
    #: Offset of the last record that changed the row, in the instance's partition of
    #: workflow-history.
    offset: int


class WorkflowEvent(msgspec.Struct):
    """Events received by instances. Topic workflow-history."""

    #: The workflow.
    workflow_name: Key
    #: The instance.
    instance_id: Key
    #: The run; a retry gets the unconsumed events of the previous run, a restart gets none.
    run_number: Integer
    #: The sender's id; an event with the same id is a duplicate.
    id: Key
    #: Its type.
    type: str
    #: Its payload, unchanged JSON text.
    payload: JsonText | None
    #: Number within the run, in order of arrival. Negative for events that a retry copied from the
    #: previous run.
    sequence: int
    #: When it was sent, by the sender's clock.
    created_at: Moment
    #: When a wait consumed it; null before.
    delivered_at: Moment | None
    #: The wait that consumed it.
    consumed_by_step_key: str | None
    #: Offset of the last record that changed the row, in the instance's partition of
    #: workflow-history.
    offset: int


class WorkflowLog(msgspec.Struct):
    """Log lines of step.log and of the engine. Topic workflow-history."""

    #: The workflow.
    workflow_name: Key
    #: The instance.
    instance_id: Key
    #: The run.
    run_number: Integer
    #: Position in workflow-history: partition-offset-index, zero-padded, so that text order is the
    #: order of writing.
    id: Key
    #: The step that wrote it, if one did.
    step_key: str | None
    #: That step's attempt.
    attempt: Integer | None
    #: debug, info, warn or error.
    level: Literal["debug", "info", "warn", "error"]
    #: The author's category; system for the engine.
    category: str
    #: The message; NUL is replaced by U+FFFD.
    message: str
    #: Additional data, unchanged JSON text.
    data: JsonText | None
    #: Whether it was written during a replay.
    is_replay: bool
    #: When it was written.
    created_at: Moment


class WorkflowGraphEvent(msgspec.Struct):
    """Workflow events of graphs: what happened in a run, by name. Topic workflow-history."""

    #: The workflow.
    workflow_name: Key
    #: The instance.
    instance_id: Key
    #: The run.
    run_number: Integer
    #: Number, within the run, of the event of the history that it is derived from.
    sequence: int
    #: Its position among those that are derived from the same event; the first is 0.
    position: Integer
    #: workflow.started, workflow.completed, workflow.failed, task.dispatched, task.completed,
    #: task.failed, token.created, token.completed, token.waiting, fan_out.started,
    #: fan_in.completed, branches.merged, subworkflow.dispatched or subworkflow.completed.
    name: Key
    #: Its node; null for an event of the whole run.
    node_ref: str | None
    #: Its token; null for an event of the whole run, or of several tokens.
    token_id: int | None
    #: Details, an object; values of authors are not among them.
    payload: JsonText
    #: When it happened.
    created_at: Moment
    #: Offset of its record, in the instance's partition of workflow-history.
    offset: int


class WorkflowSlot(msgspec.Struct):
    """Runs that hold a slot of their workflow's concurrency limit, or wait for one.

    Topic workflow-history.
    """

    #: The workflow.
    workflow_name: Key
    #: The limit: the instance that counts its slots.
    instance_id: Key
    #: Number of the run, in order of arrival.
    number: int
    #: The key of the limit; null for a limit without one.
    key: JsonText | None
    #: The instance of the run.
    holder_id: Key
    #: The run.
    holder_run: Integer
    #: When the slot was requested.
    asked_at: Moment
    #: When the slot was granted; null while the run waits.
    granted_at: Moment | None


INSTANCE: Final = table_of(
    WorkflowInstance,
    "workflow_name",
    "instance_id",
    # `forced`: whether the status is set in any case, or only if the run is active or waiting.
    # `retries`: whether the run continues the previous one and keeps its start.
    hints={"forced": "boolean", "retries": "boolean"},
    # Rewritten with every batch that changes it: free space on the page avoids index updates.
    storage="fillfactor = 70",
)
RUN: Final = table_of(WorkflowRun, "workflow_name", "instance_id", "run_number")
STEP: Final = table_of(WorkflowStep, "workflow_name", "instance_id", "run_number", "step_key")
TOKEN: Final = table_of(WorkflowToken, "workflow_name", "instance_id", "run_number", "id")
#: In `retry_status` of a change: the stored status determines how a retry restarts the token.
AS_STORED: Final = "as_stored"
EVENT: Final = table_of(WorkflowEvent, "workflow_name", "instance_id", "run_number", "id")
LOG: Final = table_of(WorkflowLog, "workflow_name", "instance_id", "run_number", "id")
GRAPH_EVENT: Final = table_of(
    WorkflowGraphEvent,
    "workflow_name",
    "instance_id",
    "run_number",
    "sequence",
    "position",
    # Name of the event if its node starts a child workflow.
    hints={"child_name": "text"},
)
SLOT: Final = table_of(WorkflowSlot, "workflow_name", "instance_id", "number")

WORKFLOW_TABLES: Final = (INSTANCE, RUN, STEP, TOKEN, EVENT, LOG, GRAPH_EVENT, SLOT)
