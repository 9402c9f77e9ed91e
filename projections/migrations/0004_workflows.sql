-- The histories of workflows as rows. Values of authors have the type json, which keeps their text:
-- jsonb would reorder keys, round numbers and reject the escape \u0000. Keys compare as bytes
-- ("C"), so that pages and the trimming of loops do not depend on a locale. There are no foreign
-- keys: a record that cannot be applied is in projection_errors, and later records must not fail
-- because of it.

-- Rewritten with every batch that changes it: free space on the page avoids index updates.
create table workflow_instance (
    workflow_name text collate "C",
    instance_id text collate "C",
    run_number integer not null,
    status text not null check (status in ('active', 'waiting', 'paused', 'complete', 'errored', 'terminated')),
    params json not null,
    output json,
    error_name text,
    error_message text,
    error_detail json,
    parent_workflow_name text,
    parent_instance_id text,
    parent_run_number integer,
    parent_step_key text,
    deployment_id text collate "C",
    traceparent text,
    parent_span_id text,
    labels jsonb not null default '{}',
    created_at timestamptz not null,
    updated_at timestamptz not null,
    started_at timestamptz not null,
    completed_at timestamptz,
    retention_until timestamptz,
    partition integer not null,
    run_offset bigint not null,
    "offset" bigint not null,
    primary key (workflow_name, instance_id)
) with (fillfactor = 70);

create index workflow_instance_newest
    on workflow_instance (workflow_name, created_at, instance_id);
create index workflow_instance_status
    on workflow_instance (workflow_name, status, created_at, instance_id);
-- An instance is rewritten with every batch until it has ended, and few have not: only ended ones
-- are worth an index on the time of their end.
create index workflow_instance_ended
    on workflow_instance (workflow_name, status, updated_at)
    where status in ('complete', 'errored', 'terminated');
-- By default instances are kept indefinitely, and this index is empty.
create index workflow_instance_retention
    on workflow_instance (retention_until, workflow_name, instance_id)
    where retention_until is not null;

create index workflow_instance_deployment
    on workflow_instance (workflow_name, deployment_id, created_at, instance_id)
    where deployment_id is not null;
-- Finds when the last run on a deployment ended.
create index workflow_instance_drained
    on workflow_instance (workflow_name, deployment_id, completed_at)
    where completed_at is not null and deployment_id is not null;
create index workflow_instance_labels on workflow_instance using gin (labels jsonb_path_ops);

comment on table workflow_instance is 'Instances of workflows with their current run. Topic workflow-history.';
comment on column workflow_instance.workflow_name is 'The workflow.';
comment on column workflow_instance.instance_id is 'The instance, unique within its workflow.';
comment on column workflow_instance.run_number is 'Number of the current run; the first is 0.';
comment on column workflow_instance.status is 'active, waiting, paused, complete, errored or terminated.';
comment on column workflow_instance.params is 'Parameters of the run, unchanged JSON text.';
comment on column workflow_instance.output is 'Output of the run, unchanged JSON text.';
comment on column workflow_instance.error_name is 'Name of the error with which the run ended.';
comment on column workflow_instance.error_message is 'Message of the error; NUL is replaced by U+FFFD.';
comment on column workflow_instance.error_detail is 'Additional data of the error, such as a join''s.';
comment on column workflow_instance.parent_workflow_name is 'Workflow of the parent; null unless this is a child.';
comment on column workflow_instance.parent_instance_id is 'The parent.';
comment on column workflow_instance.parent_run_number is 'The parent''s run.';
comment on column workflow_instance.parent_step_key is 'The entry of the parent that started it.';
comment on column workflow_instance.deployment_id is 'Deployment of the current run, or app (--app); null if it follows the newest code.';
comment on column workflow_instance.traceparent is 'W3C trace context of the current run: header traceparent.';
comment on column workflow_instance.parent_span_id is 'The span that started it; null if it began its trace.';
comment on column workflow_instance.labels is 'Labels for searches: texts by name.';
comment on column workflow_instance.created_at is 'When the first run began.';
comment on column workflow_instance.updated_at is 'When its last event happened.';
comment on column workflow_instance.started_at is 'When the current run began; for a retry, when the run that it continues began.';
comment on column workflow_instance.completed_at is 'When the current run ended.';
comment on column workflow_instance.retention_until is 'When a prune may remove the ended instance; null keeps it indefinitely.';
comment on column workflow_instance.partition is 'Partition of workflow-history.';
comment on column workflow_instance.run_offset is 'Offset of the record that began the current run.';
comment on column workflow_instance."offset" is 'Offset of the last applied record.';

create table workflow_run (
    workflow_name text collate "C",
    instance_id text collate "C",
    run_number integer,
    status text not null,
    params json not null,
    output json,
    error_name text,
    error_message text,
    error_detail json,
    parent_workflow_name text,
    parent_instance_id text,
    parent_run_number integer,
    parent_step_key text,
    deployment_id text collate "C",
    traceparent text,
    parent_span_id text,
    updated_at timestamptz not null,
    started_at timestamptz not null,
    completed_at timestamptz,
    partition integer not null,
    run_offset bigint not null,
    "offset" bigint not null,
    primary key (workflow_name, instance_id, run_number)
);

comment on table workflow_run is 'Earlier runs of instances, as they were in workflow_instance when the next run began.';
comment on column workflow_run.workflow_name is 'The workflow.';
comment on column workflow_run.instance_id is 'The instance.';
comment on column workflow_run.run_number is 'The run; the first is 0.';
comment on column workflow_run.status is 'Status when the next run began.';
comment on column workflow_run.params is 'Parameters of the run.';
comment on column workflow_run.output is 'Output of the run.';
comment on column workflow_run.error_name is 'Name of the error with which it ended.';
comment on column workflow_run.error_message is 'Message of the error; NUL is replaced by U+FFFD.';
comment on column workflow_run.error_detail is 'Additional data of the error.';
comment on column workflow_run.parent_workflow_name is 'Workflow of the parent.';
comment on column workflow_run.parent_instance_id is 'The parent.';
comment on column workflow_run.parent_run_number is 'The parent''s run.';
comment on column workflow_run.parent_step_key is 'The entry of the parent that started it.';
comment on column workflow_run.deployment_id is 'Deployment of the run, or app (--app); null if it follows the newest code.';
comment on column workflow_run.traceparent is 'W3C trace context of the run: header traceparent.';
comment on column workflow_run.parent_span_id is 'The span that started it; null if it began its trace.';
comment on column workflow_run.updated_at is 'When its last event happened.';
comment on column workflow_run.started_at is 'When it began.';
comment on column workflow_run.completed_at is 'When it ended; null if it was restarted before it ended.';
comment on column workflow_run.partition is 'Partition of workflow-history.';
comment on column workflow_run.run_offset is 'Offset of the record that began it.';
comment on column workflow_run."offset" is 'Offset of its last record.';

create table workflow_step (
    workflow_name text collate "C",
    instance_id text collate "C",
    run_number integer,
    step_key text collate "C",
    name text not null,
    type text not null,
    status text not null check (status in ('pending', 'waiting', 'completed', 'errored', 'cancelled')),
    attempts integer not null,
    max_attempts integer,
    timeout_ms bigint,
    next_retry_at timestamptz,
    wake_at timestamptz,
    wait_event_type text,
    child_workflow_name text,
    child_instance_id text,
    result json,
    error_name text,
    error_message text,
    error_detail json,
    ordinal bigint not null,
    sequence bigint not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    last_attempt_at timestamptz,
    completed_at timestamptz,
    rolled_back_at timestamptz,
    rollback_failed_at timestamptz,
    trimmed_before bigint,
    "offset" bigint not null,
    primary key (workflow_name, instance_id, run_number, step_key)
);

create index workflow_step_history
    on workflow_step (workflow_name, instance_id, run_number, ordinal, sequence);
-- Few rows at a time: finds the current steps of a run at once, however long it is.
create index workflow_step_unfinished
    on workflow_step (workflow_name, instance_id, run_number, ordinal, sequence)
    where status in ('pending', 'waiting', 'errored');
-- Few rows at a time: finds the runs whose step has failed and is tried again.
create index workflow_step_retrying on workflow_step (next_retry_at)
    where next_retry_at is not null;
create index workflow_step_changed
    on workflow_step (workflow_name, instance_id, run_number, "offset");

comment on table workflow_step is 'Entries of code workflows: steps, sleeps, waits, loops and others. Topic workflow-history.';
comment on column workflow_step.workflow_name is 'The workflow.';
comment on column workflow_step.instance_id is 'The instance.';
comment on column workflow_step.run_number is 'The run.';
comment on column workflow_step.step_key is 'Path of names, for example pages/~3/fetch.';
comment on column workflow_step.name is 'The author''s name for it.';
comment on column workflow_step.type is 'do, sleep, wait_for_event, loop, join, race, child, checkpoint or removed.';
comment on column workflow_step.status is 'pending, waiting, completed, errored or cancelled.';
comment on column workflow_step.attempts is 'Ended attempts; 0 for all types but do.';
comment on column workflow_step.max_attempts is 'Maximum attempts; null without a limit.';
comment on column workflow_step.timeout_ms is 'Timeout of an attempt; null without one.';
comment on column workflow_step.next_retry_at is 'When the next attempt begins, while it is scheduled.';
comment on column workflow_step.wake_at is 'When a sleep ends or a wait times out; kept after its end.';
comment on column workflow_step.wait_event_type is 'Awaited event type; a JSON list if the author gave a list.';
comment on column workflow_step.child_workflow_name is 'Workflow of the child that it started.';
comment on column workflow_step.child_instance_id is 'The child that it started.';
comment on column workflow_step.result is 'Its result, unchanged JSON text.';
comment on column workflow_step.error_name is 'Name of its error; for do, of the last attempt''s.';
comment on column workflow_step.error_message is 'Message of the error; NUL is replaced by U+FFFD.';
comment on column workflow_step.error_detail is 'Additional data of the error, such as a join''s.';
comment on column workflow_step.ordinal is 'The order in which entries were first reached.';
comment on column workflow_step.sequence is 'Number, within the run, of the event that showed it first; breaks ties of ordinals. Negative for entries that a retry copied from the previous run, in the order of that run.';
comment on column workflow_step.created_at is 'When it was first reached.';
comment on column workflow_step.updated_at is 'When it last changed.';
comment on column workflow_step.last_attempt_at is 'When its latest attempt began; null for all but do.';
comment on column workflow_step.completed_at is 'When it ended; a later rollback does not change it.';
comment on column workflow_step.rolled_back_at is 'When its rollback was completed.';
comment on column workflow_step.rollback_failed_at is 'When its rollback failed for good, after the last attempt of its handler.';
comment on column workflow_step.trimmed_before is 'Of a loop: earlier iterations were trimmed, and their entries have no rows; null if none was.';
comment on column workflow_step."offset" is 'Offset of the last record that changed the row, in the instance''s partition of workflow-history.';

create table workflow_token (
    workflow_name text collate "C",
    instance_id text collate "C",
    run_number integer,
    id bigint,
    node_ref text not null,
    task text,
    subworkflow text,
    status text not null check (status in ('pending', 'dispatched', 'executing', 'waiting_for_siblings', 'waiting_for_subworkflow', 'waiting_for_time', 'waiting_for_event', 'completed', 'failed', 'timed_out', 'cancelled')),
    path_id text not null,
    parent_token_id bigint,
    sibling_group text,
    branch_index integer not null,
    branch_total integer not null,
    iteration_counts json not null,
    attempts integer not null,
    input json,
    result json,
    error_name text,
    error_message text,
    error_detail json,
    next_retry_at timestamptz,
    wake_at timestamptz,
    event_type text,
    reason text,
    retry_status text,
    child_workflow_name text,
    child_instance_id text,
    idempotency_token text,
    worker text,
    lease_until timestamptz,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    completed_at timestamptz,
    "offset" bigint not null,
    primary key (workflow_name, instance_id, run_number, id)
);

-- Open jobs, longest waiting first.
create index workflow_token_open_job on workflow_token (task, updated_at)
    where status = 'dispatched' and idempotency_token is not null;
-- Jobs that have not ended, for listings of all of them.
create index workflow_token_job
    on workflow_token (created_at, workflow_name, instance_id, run_number, id)
    where completed_at is null and idempotency_token is not null;
-- Few rows at a time: finds the current tokens of a run at once, however many there were.
create index workflow_token_current
    on workflow_token (workflow_name, instance_id, run_number, id)
    where completed_at is null or status in ('failed', 'timed_out');
-- Like workflow_step_retrying.
create index workflow_token_retrying on workflow_token (next_retry_at)
    where next_retry_at is not null;
-- The condition is always true, but prevents Postgres from using this index for lookups by key:
-- without statistics both look alike, and each change would read all tokens of its run.
create index workflow_token_changed
    on workflow_token (workflow_name, instance_id, run_number, "offset") where "offset" >= 0;

comment on table workflow_token is 'Tokens of graph workflows, each at a node, with their status. Topic workflow-history.';
comment on column workflow_token.workflow_name is 'The workflow.';
comment on column workflow_token.instance_id is 'The instance.';
comment on column workflow_token.run_number is 'The run.';
comment on column workflow_token.id is 'Number within the run, in the order of creation.';
comment on column workflow_token.node_ref is 'The node.';
comment on column workflow_token.task is 'The task of that node.';
comment on column workflow_token.subworkflow is 'The workflow that the node starts, if it has no task.';
comment on column workflow_token.status is 'pending, dispatched, executing, waiting_for_siblings, waiting_for_subworkflow, waiting_for_time, waiting_for_event, completed, failed, timed_out or cancelled.';
comment on column workflow_token.path_id is 'Its path, extended by .node.branch at each fork.';
comment on column workflow_token.parent_token_id is 'The token that it follows.';
comment on column workflow_token.sibling_group is 'The group of its innermost fork.';
comment on column workflow_token.branch_index is 'Its branch in that fork; the first is 0.';
comment on column workflow_token.branch_total is 'Number of branches of that fork.';
comment on column workflow_token.iteration_counts is 'Transitions taken since its parent: an object of counts by ref. Those of its ancestors are in their rows.';
comment on column workflow_token.attempts is 'Number of its latest attempt; 0 before the first.';
comment on column workflow_token.input is 'Input of its task, unchanged JSON text.';
comment on column workflow_token.result is 'Result of its task or workflow, unchanged JSON text.';
comment on column workflow_token.error_name is 'Name of the error of its latest attempt.';
comment on column workflow_token.error_message is 'Message of the error; NUL is replaced by U+FFFD.';
comment on column workflow_token.error_detail is 'Additional data of the error.';
comment on column workflow_token.next_retry_at is 'When the next attempt begins, while it is scheduled.';
comment on column workflow_token.wake_at is 'When its wait ends or times out; kept after its end.';
comment on column workflow_token.event_type is 'Type of the event that it waits for; kept after its wait.';
comment on column workflow_token.reason is 'Why it was cancelled.';
comment on column workflow_token.retry_status is 'Its status after a retry of its run; null if it had ended before.';
comment on column workflow_token.child_workflow_name is 'Workflow of the child that it started.';
comment on column workflow_token.child_instance_id is 'The child that it started.';
comment on column workflow_token.idempotency_token is 'Of a job: idempotency token for other systems, the same for all attempts.';
comment on column workflow_token.worker is 'External worker that holds the lease.';
comment on column workflow_token.lease_until is 'When the lease expires.';
comment on column workflow_token.created_at is 'When it was created.';
comment on column workflow_token.updated_at is 'When it last changed.';
comment on column workflow_token.completed_at is 'When it ended.';
comment on column workflow_token."offset" is 'Offset of the last record that changed the row, in the instance''s partition of workflow-history.';

create table workflow_event (
    workflow_name text collate "C",
    instance_id text collate "C",
    run_number integer,
    id text collate "C",
    type text not null,
    payload json,
    sequence bigint not null,
    created_at timestamptz not null,
    delivered_at timestamptz,
    consumed_by_step_key text,
    "offset" bigint not null,
    primary key (workflow_name, instance_id, run_number, id)
);

create index workflow_event_history
    on workflow_event (workflow_name, instance_id, run_number, sequence);
create index workflow_event_changed
    on workflow_event (workflow_name, instance_id, run_number, "offset");

comment on table workflow_event is 'Events received by instances. Topic workflow-history.';
comment on column workflow_event.workflow_name is 'The workflow.';
comment on column workflow_event.instance_id is 'The instance.';
comment on column workflow_event.run_number is 'The run; a retry gets the unconsumed events of the previous run, a restart gets none.';
comment on column workflow_event.id is 'The sender''s id; an event with the same id is a duplicate.';
comment on column workflow_event.type is 'Its type.';
comment on column workflow_event.payload is 'Its payload, unchanged JSON text.';
comment on column workflow_event.sequence is 'Number within the run, in order of arrival. Negative for events that a retry copied from the previous run.';
comment on column workflow_event.created_at is 'When it was sent, by the sender''s clock.';
comment on column workflow_event.delivered_at is 'When a wait consumed it; null before.';
comment on column workflow_event.consumed_by_step_key is 'The wait that consumed it.';
comment on column workflow_event."offset" is 'Offset of the last record that changed the row, in the instance''s partition of workflow-history.';

create table workflow_log (
    workflow_name text collate "C",
    instance_id text collate "C",
    run_number integer,
    id text collate "C",
    step_key text,
    attempt integer,
    level text not null check (level in ('debug', 'info', 'warn', 'error')),
    category text not null,
    message text not null,
    data json,
    is_replay boolean not null,
    created_at timestamptz not null,
    primary key (workflow_name, instance_id, run_number, id)
);

create index workflow_log_level
    on workflow_log (workflow_name, instance_id, run_number, level, id);
create index workflow_log_category
    on workflow_log (workflow_name, instance_id, run_number, category, id);

comment on table workflow_log is 'Log lines of step.log and of the engine. Topic workflow-history.';
comment on column workflow_log.workflow_name is 'The workflow.';
comment on column workflow_log.instance_id is 'The instance.';
comment on column workflow_log.run_number is 'The run.';
comment on column workflow_log.id is 'Position in workflow-history: partition-offset-index, zero-padded, so that text order is the order of writing.';
comment on column workflow_log.step_key is 'The step that wrote it, if one did.';
comment on column workflow_log.attempt is 'That step''s attempt.';
comment on column workflow_log.level is 'debug, info, warn or error.';
comment on column workflow_log.category is 'The author''s category; system for the engine.';
comment on column workflow_log.message is 'The message; NUL is replaced by U+FFFD.';
comment on column workflow_log.data is 'Additional data, unchanged JSON text.';
comment on column workflow_log.is_replay is 'Whether it was written during a replay.';
comment on column workflow_log.created_at is 'When it was written.';

create table workflow_graph_event (
    workflow_name text collate "C",
    instance_id text collate "C",
    run_number integer,
    sequence bigint,
    position integer,
    name text collate "C" not null,
    node_ref text,
    token_id bigint,
    payload json not null,
    created_at timestamptz not null,
    "offset" bigint not null,
    primary key (workflow_name, instance_id, run_number, sequence, position)
);

create index workflow_graph_event_changed
    on workflow_graph_event (workflow_name, instance_id, run_number, "offset");
create index workflow_graph_event_name on workflow_graph_event (name, created_at);

comment on table workflow_graph_event is 'Workflow events of graphs: what happened in a run, by name. Topic workflow-history.';
comment on column workflow_graph_event.workflow_name is 'The workflow.';
comment on column workflow_graph_event.instance_id is 'The instance.';
comment on column workflow_graph_event.run_number is 'The run.';
comment on column workflow_graph_event.sequence is 'Number, within the run, of the event of the history that it is derived from.';
comment on column workflow_graph_event.position is 'Its position among those that are derived from the same event; the first is 0.';
comment on column workflow_graph_event.name is 'workflow.started, workflow.completed, workflow.failed, task.dispatched, task.completed, task.failed, token.created, token.completed, token.waiting, fan_out.started, fan_in.completed, branches.merged, subworkflow.dispatched or subworkflow.completed.';
comment on column workflow_graph_event.node_ref is 'Its node; null for an event of the whole run.';
comment on column workflow_graph_event.token_id is 'Its token; null for an event of the whole run, or of several tokens.';
comment on column workflow_graph_event.payload is 'Details, an object; values of authors are not among them.';
comment on column workflow_graph_event.created_at is 'When it happened.';
comment on column workflow_graph_event."offset" is 'Offset of its record, in the instance''s partition of workflow-history.';

create table workflow_slot (
    workflow_name text collate "C",
    instance_id text collate "C",
    number bigint,
    key json,
    holder_id text collate "C" not null,
    holder_run integer not null,
    asked_at timestamptz not null,
    granted_at timestamptz,
    primary key (workflow_name, instance_id, number)
);

create index workflow_slot_holder on workflow_slot (workflow_name, holder_id);

comment on table workflow_slot is 'Runs that hold a slot of their workflow''s concurrency limit, or wait for one. Topic workflow-history.';
comment on column workflow_slot.workflow_name is 'The workflow.';
comment on column workflow_slot.instance_id is 'The limit: the instance that counts its slots.';
comment on column workflow_slot.number is 'Number of the run, in order of arrival.';
comment on column workflow_slot.key is 'The key of the limit; null for a limit without one.';
comment on column workflow_slot.holder_id is 'The instance of the run.';
comment on column workflow_slot.holder_run is 'The run.';
comment on column workflow_slot.asked_at is 'When the slot was requested.';
comment on column workflow_slot.granted_at is 'When the slot was granted; null while the run waits.';

create table workflow_owner (
    partition integer primary key,
    epoch bigint not null,
    owner text not null,
    workflows text[] not null,
    known text[] not null,
    params_schemas json not null,
    limits json not null,
    claimed_at timestamptz not null
);

comment on table workflow_owner is
    'Owners of the partitions of workflow-history: the latest claim of each. Topic workflow-history.';
comment on column workflow_owner.partition is 'Partition of workflow-history.';
comment on column workflow_owner.epoch is 'Offset of the claim there.';
comment on column workflow_owner.owner is 'Name of the owner.';
comment on column workflow_owner.workflows is 'Names of the workflows whose code it has.';
comment on column workflow_owner.known is
    'Names of the workflows whose code it or an earlier owner had, sorted.';
comment on column workflow_owner.params_schemas is
    'JSON Schemas of parameters, as text by workflow, for those that declare a type.';
comment on column workflow_owner.limits is
    'Concurrency limits by workflow, for those that have one: {"limit": 3, "key": "params.region"}.';
comment on column workflow_owner.claimed_at is 'When it claimed the partition.';
