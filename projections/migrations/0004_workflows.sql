-- The histories of workflows as rows. Columns are those of the product's data model, with what reading
-- them takes; values of authors are of type json, which keeps their text as it was: jsonb would order
-- their keys, round their numbers and refuse the escape \u0000. Keys compare as bytes ("C"), so that
-- pages and the trimming of loops do not depend on a locale. Without foreign keys: a record that
-- cannot be applied lies in projection_errors, and what follows it must not fail for that.

create table workflow_instance (
    workflow_name text collate "C",
    instance_id text collate "C",
    run_number integer not null,
    status text not null
        check (status in ('active', 'waiting', 'paused', 'complete', 'errored', 'terminated')),
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
-- Written anew with every batch that tells of it: room on the page leaves the indexes alone.
) with (fillfactor = 70);

create index workflow_instance_newest
    on workflow_instance (workflow_name, created_at, instance_id);
create index workflow_instance_status
    on workflow_instance (workflow_name, status, created_at, instance_id);
-- An instance is written with each batch that tells of it until it has ended, and few are not ended: the
-- others alone are worth an index by the time of their end.
create index workflow_instance_ended
    on workflow_instance (workflow_name, status, updated_at)
    where status in ('complete', 'errored', 'terminated');
-- Of instances that are kept for ever, which is all of them by default, it has none.
create index workflow_instance_retention
    on workflow_instance (retention_until, workflow_name, instance_id)
    where retention_until is not null;

create index workflow_instance_deployment
    on workflow_instance (workflow_name, deployment_id, created_at, instance_id)
    where deployment_id is not null;
create index workflow_instance_labels on workflow_instance using gin (labels jsonb_path_ops);

comment on table workflow_instance is
    'Instances of workflows, each in its current run. Topic workflow-history.';
comment on column workflow_instance.workflow_name is 'The workflow.';
comment on column workflow_instance.instance_id is 'The instance, unique in its workflow.';
comment on column workflow_instance.run_number is 'The current run; the first is 0.';
comment on column workflow_instance.status is
    'active, waiting, paused, complete, errored or terminated.';
comment on column workflow_instance.params is 'What the run was started with, text as it came.';
comment on column workflow_instance.output is 'What the run returned, text as it came.';
comment on column workflow_instance.error_name is 'Name of the error that ended the run.';
comment on column workflow_instance.error_message is 'Its message; a NUL in it became U+FFFD.';
comment on column workflow_instance.error_detail is 'What else the error carries, such as a join''s.';
comment on column workflow_instance.parent_workflow_name is
    'Workflow of the parent; null unless this is a child.';
comment on column workflow_instance.parent_instance_id is 'The parent.';
comment on column workflow_instance.parent_run_number is 'The parent''s run.';
comment on column workflow_instance.parent_step_key is 'The entry that it belongs to.';
comment on column workflow_instance.deployment_id is
    'The deployment that the current run began on; null for one that follows the code.';
comment on column workflow_instance.labels is 'Texts by which it is found, by name.';
comment on column workflow_instance.created_at is 'When the first run began.';
comment on column workflow_instance.updated_at is 'When the last event of it happened.';
comment on column workflow_instance.started_at is
    'When the current run began; of a retry, when the run began that it goes on with.';
comment on column workflow_instance.completed_at is 'When the current run ended, however.';
comment on column workflow_instance.retention_until is
    'When the run had ended and may be removed by a prune; null: kept for ever.';
comment on column workflow_instance.partition is
    'Position of the last record that was applied: partition of workflow-history.';
comment on column workflow_instance.run_offset is 'Offset of the record that began the current run.';
comment on column workflow_instance."offset" is 'Position: offset.';

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
    updated_at timestamptz not null,
    started_at timestamptz not null,
    completed_at timestamptz,
    partition integer not null,
    run_offset bigint not null,
    "offset" bigint not null,
    primary key (workflow_name, instance_id, run_number)
);

comment on table workflow_run is
    'Runs that a newer run has followed, as workflow_instance had them then; the current run is there.';
comment on column workflow_run.workflow_name is 'The workflow.';
comment on column workflow_run.instance_id is 'The instance.';
comment on column workflow_run.run_number is 'The run; the first is 0.';
comment on column workflow_run.status is 'How it stood when the next run began.';
comment on column workflow_run.params is 'What it was started with.';
comment on column workflow_run.output is 'What it returned.';
comment on column workflow_run.error_name is 'Name of the error that ended it.';
comment on column workflow_run.error_message is 'Its message; a NUL in it became U+FFFD.';
comment on column workflow_run.error_detail is 'What else the error carries.';
comment on column workflow_run.parent_workflow_name is 'Workflow of the parent.';
comment on column workflow_run.parent_instance_id is 'The parent.';
comment on column workflow_run.parent_run_number is 'The parent''s run.';
comment on column workflow_run.parent_step_key is 'The entry that it belonged to.';
comment on column workflow_run.deployment_id is 'The deployment that it began on.';
comment on column workflow_run.updated_at is 'When its last event happened.';
comment on column workflow_run.started_at is 'When it began.';
comment on column workflow_run.completed_at is 'When it ended; null if it was restarted before.';
comment on column workflow_run.partition is
    'Position of its last record: partition of workflow-history.';
comment on column workflow_run.run_offset is 'Offset of the record that began it.';
comment on column workflow_run."offset" is 'Position: offset.';

create table workflow_step (
    workflow_name text collate "C",
    instance_id text collate "C",
    run_number integer,
    step_key text collate "C",
    name text not null,
    type text not null,
    status text not null
        check (status in ('pending', 'waiting', 'completed', 'errored', 'cancelled')),
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
-- Few are in it at a time: what a run stands at is found at once, however long it is.
create index workflow_step_unfinished
    on workflow_step (workflow_name, instance_id, run_number, ordinal, sequence)
    where status in ('pending', 'waiting', 'errored');
create index workflow_step_changed
    on workflow_step (workflow_name, instance_id, run_number, "offset");

comment on table workflow_step is
    'Entries of code workflows: steps, sleeps, waits, loops and the like. Topic workflow-history.';
comment on column workflow_step.workflow_name is 'The workflow.';
comment on column workflow_step.instance_id is 'The instance.';
comment on column workflow_step.run_number is 'The run.';
comment on column workflow_step.step_key is
    'The path of names that leads to it, for example pages/~3/fetch.';
comment on column workflow_step.name is 'The name that its author gave it.';
comment on column workflow_step.type is
    'do, sleep, wait_for_event, loop, join, race, child, checkpoint or removed.';
comment on column workflow_step.status is 'pending, waiting, completed, errored or cancelled.';
comment on column workflow_step.attempts is 'Attempts that have ended; 0 for all but do.';
comment on column workflow_step.max_attempts is 'Null when there is no limit.';
comment on column workflow_step.timeout_ms is 'Time that an attempt has; null when it has any.';
comment on column workflow_step.next_retry_at is 'When the next attempt begins, while it waits.';
comment on column workflow_step.wake_at is 'When a sleep or a wait ends at the latest; it stays when it has ended.';
comment on column workflow_step.wait_event_type is
    'The type of event that is waited for; a JSON list where the author gave a list.';
comment on column workflow_step.child_workflow_name is 'Workflow of the child that it started.';
comment on column workflow_step.child_instance_id is 'The child that it started.';
comment on column workflow_step.result is 'Its result, text as it came.';
comment on column workflow_step.error_name is 'Name of its error; of the last attempt''s, for do.';
comment on column workflow_step.error_message is 'Its message; a NUL in it became U+FFFD.';
comment on column workflow_step.error_detail is 'What else the error carries, such as a join''s.';
comment on column workflow_step.ordinal is 'The order in which entries were first reached.';
comment on column workflow_step.sequence is
    'Number, within the run, of the event that showed it first; decides between equal ordinals. Below 0 for what a retry took over from the run before, in the order of that run.';
comment on column workflow_step.created_at is 'When it was first reached.';
comment on column workflow_step.updated_at is 'When it last changed.';
comment on column workflow_step.last_attempt_at is 'When its latest attempt began; null for all but do.';
comment on column workflow_step.completed_at is 'When it ended, however; a later rollback leaves it.';
comment on column workflow_step.rolled_back_at is 'When its rollback was done.';
comment on column workflow_step.rollback_failed_at is
    'When its rollback was given up, after the last attempt of its handler failed.';
comment on column workflow_step.trimmed_before is
    'Of a loop: iterations before this are forgotten, and what lies in them has no rows; null while none is.';
comment on column workflow_step."offset" is
    'Offset, in the instance''s partition of workflow-history, of the last record that changed the row.';

create table workflow_token (
    workflow_name text collate "C",
    instance_id text collate "C",
    run_number integer,
    id bigint,
    node_ref text not null,
    task text,
    subworkflow text,
    status text not null
        check (status in (
            'pending', 'dispatched', 'executing', 'waiting_for_siblings',
            'waiting_for_subworkflow', 'completed', 'failed', 'timed_out', 'cancelled'
        )),
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

-- Jobs that a worker may take, the one that has waited longest first.
create index workflow_token_open_job on workflow_token (task, updated_at)
    where status = 'dispatched' and idempotency_token is not null;
-- Jobs that have not ended, for who looks at all of them.
create index workflow_token_job
    on workflow_token (created_at, workflow_name, instance_id, run_number, id)
    where completed_at is null and idempotency_token is not null;
-- Few are in it at a time: what a run stands at is found at once, however many tokens it had.
create index workflow_token_current
    on workflow_token (workflow_name, instance_id, run_number, id)
    where completed_at is null or status in ('failed', 'timed_out');
-- Holds all rows, and who finds a token by its key cannot take it for the key's: without statistics both
-- look alike, and along this one each change would read all tokens of its run.
create index workflow_token_changed
    on workflow_token (workflow_name, instance_id, run_number, "offset") where "offset" >= 0;

comment on table workflow_token is
    'Tokens of graph workflows: each is at a node, and says how that stands. Topic workflow-history.';
comment on column workflow_token.workflow_name is 'The workflow.';
comment on column workflow_token.instance_id is 'The instance.';
comment on column workflow_token.run_number is 'The run.';
comment on column workflow_token.id is 'Number within the run, in the order of creation.';
comment on column workflow_token.node_ref is 'The node that it is at.';
comment on column workflow_token.task is 'The task of that node.';
comment on column workflow_token.subworkflow is
    'The workflow that the node starts, if it has no task.';
comment on column workflow_token.status is
    'pending, dispatched, executing, waiting_for_siblings, waiting_for_subworkflow, completed, failed, timed_out or cancelled.';
comment on column workflow_token.path_id is
    'Its path: longer by .node.branch wherever a fork began on the way.';
comment on column workflow_token.parent_token_id is 'The token that it came from.';
comment on column workflow_token.sibling_group is 'The group of the innermost fork that it is in.';
comment on column workflow_token.branch_index is 'Which branch of that fork it is in; the first is 0.';
comment on column workflow_token.branch_total is 'How many branches that fork has.';
comment on column workflow_token.iteration_counts is
    'How often which transitions were taken on the way: an object of counts by ref.';
comment on column workflow_token.attempts is 'The number of its latest attempt; 0 before the first.';
comment on column workflow_token.input is 'What its task was given, text as it came.';
comment on column workflow_token.result is 'What its task or workflow gave, text as it came.';
comment on column workflow_token.error_name is 'Name of its latest attempt''s error.';
comment on column workflow_token.error_message is 'Its message; a NUL in it became U+FFFD.';
comment on column workflow_token.error_detail is 'What else the error carries.';
comment on column workflow_token.next_retry_at is 'When the next attempt begins, while it waits.';
comment on column workflow_token.wake_at is
    'When its wait for siblings or a workflow ends at the latest; it stays when that has ended.';
comment on column workflow_token.reason is 'Why it was cancelled.';
comment on column workflow_token.retry_status is
    'Its status in a retry of its run, which takes it up again; null for one that had ended before.';
comment on column workflow_token.child_workflow_name is 'Workflow of the child that it started.';
comment on column workflow_token.child_instance_id is 'The child that it started.';
comment on column workflow_token.idempotency_token is
    'Of a job for workers outside: what names it to others, the same for all of its attempts.';
comment on column workflow_token.worker is 'The worker outside that has it.';
comment on column workflow_token.lease_until is 'Until when the worker has it.';
comment on column workflow_token.created_at is 'When it was created.';
comment on column workflow_token.updated_at is 'When it last changed.';
comment on column workflow_token.completed_at is 'When it ended, however.';
comment on column workflow_token."offset" is
    'Offset, in the instance''s partition of workflow-history, of the last record that changed the row.';

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

comment on table workflow_event is 'Events that instances have received. Topic workflow-history.';
comment on column workflow_event.workflow_name is 'The workflow.';
comment on column workflow_event.instance_id is 'The instance.';
comment on column workflow_event.run_number is
    'The run; a new run gets those of an old one that nobody took if it is a retry, and else none.';
comment on column workflow_event.id is 'The sender''s id of it: the same twice is one event.';
comment on column workflow_event.type is 'Its type.';
comment on column workflow_event.payload is 'What it says, text as it came.';
comment on column workflow_event.sequence is
    'Its number within the run: the order of arrival. Below 0 for what a retry took over from the run before.';
comment on column workflow_event.created_at is 'When it was sent, by the sender''s clock.';
comment on column workflow_event.delivered_at is 'When a wait took it; null while it lies.';
comment on column workflow_event.consumed_by_step_key is 'The wait that took it.';
comment on column workflow_event."offset" is
    'Offset, in the instance''s partition of workflow-history, of the last record that changed the row.';

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

comment on table workflow_log is 'Lines of step.log, and of the engine. Topic workflow-history.';
comment on column workflow_log.workflow_name is 'The workflow.';
comment on column workflow_log.instance_id is 'The instance.';
comment on column workflow_log.run_number is 'The run.';
comment on column workflow_log.id is
    'Where it lies in workflow-history: partition-offset-index, so wide that texts compare as numbers. The order of writing, which clocks are not.';
comment on column workflow_log.step_key is 'The step that wrote it, if one did.';
comment on column workflow_log.attempt is 'That step''s attempt.';
comment on column workflow_log.level is 'debug, info, warn or error.';
comment on column workflow_log.category is 'The author''s; system is the engine.';
comment on column workflow_log.message is 'The line; a NUL in it became U+FFFD.';
comment on column workflow_log.data is 'What goes with it, text as it came.';
comment on column workflow_log.is_replay is 'Whether code wrote it that had run before.';
comment on column workflow_log.created_at is 'When it was written.';

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

comment on table workflow_slot is
    'Runs that have a slot of their workflow''s limit of concurrency, or wait for one. Topic workflow-history.';
comment on column workflow_slot.workflow_name is 'The workflow.';
comment on column workflow_slot.instance_id is 'Which of its limits: the instance that counts the slots.';
comment on column workflow_slot.number is 'The place of the run, in the order of arrival.';
comment on column workflow_slot.key is 'The key of the limit; null for a limit without one.';
comment on column workflow_slot.holder_id is 'The instance whose run it is.';
comment on column workflow_slot.holder_run is 'The run.';
comment on column workflow_slot.asked_at is 'When it came.';
comment on column workflow_slot.granted_at is 'When it was given a slot; null while it waits.';

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
    'Who owns the partitions of workflow-history: the latest claim of each. Topic workflow-history.';
comment on column workflow_owner.partition is 'Partition of workflow-history.';
comment on column workflow_owner.epoch is 'Offset of the claim there.';
comment on column workflow_owner.owner is 'The owner''s name of itself.';
comment on column workflow_owner.workflows is 'Names of the workflows whose code it has.';
comment on column workflow_owner.known is
    'Names of the workflows whose code it or an owner before it had, in their order.';
comment on column workflow_owner.params_schemas is
    'JSON Schemas of their params, as texts by name, of those that declare a type for them.';
comment on column workflow_owner.limits is
    'Limits of their concurrency by name, of those that have one: {"limit": 3, "key": "params.region"}.';
comment on column workflow_owner.claimed_at is 'When it claimed the partition.';
