-- Instances, runs, steps, tokens, events and slots, as the projector writes them.

-- name: change_workflow_instances
-- Changes of an earlier run do not affect the row. A status that is not forced applies only to an
-- active or waiting run; a paused or ended run keeps its status.
update workflow_instance i
set status = case
        when r.forced or i.status in ('active', 'waiting') then coalesce(r.status, i.status)
        else i.status
    end,
    output = case when r.ended then r.output::json else i.output end,
    error_name = case when r.ended then r.error_name else i.error_name end,
    error_message = case when r.ended then r.error_message else i.error_message end,
    error_detail = case when r.ended then r.error_detail::json else i.error_detail end,
    completed_at = case
        when r.ended then to_timestamp(r.completed_at_ms / 1000) else i.completed_at
    end,
    retention_until = case
        when r.ended then to_timestamp(r.retention_until_ms / 1000) else i.retention_until
    end,
    updated_at = to_timestamp(r.updated_at_ms / 1000),
    partition = r.partition,
    "offset" = r."offset"
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, status text, forced boolean,
    ended boolean, output text, error_name text, error_message text, error_detail text,
    completed_at_ms double precision, retention_until_ms double precision,
    updated_at_ms double precision, partition integer,
    "offset" bigint
)
where i.workflow_name = r.workflow_name
  and i.instance_id = r.instance_id
  and i.run_number = r.run_number

-- name: change_workflow_steps
-- A new status clears the scheduled retry.
update workflow_step s
set status = coalesce(r.status, s.status),
    next_retry_at = case when r.status is null then s.next_retry_at end,
    result = case when r.settled then r.result::json else s.result end,
    error_name = case when r.settled then r.error_name else s.error_name end,
    error_message = case when r.settled then r.error_message else s.error_message end,
    error_detail = case when r.settled then r.error_detail::json else s.error_detail end,
    last_attempt_at = coalesce(to_timestamp(r.last_attempt_at_ms / 1000), s.last_attempt_at),
    completed_at = coalesce(to_timestamp(r.completed_at_ms / 1000), s.completed_at),
    rolled_back_at = coalesce(to_timestamp(r.rolled_back_at_ms / 1000), s.rolled_back_at),
    rollback_failed_at = coalesce(
        to_timestamp(r.rollback_failed_at_ms / 1000), s.rollback_failed_at
    ),
    trimmed_before = greatest(r.trimmed_before, s.trimmed_before),
    updated_at = to_timestamp(r.updated_at_ms / 1000),
    "offset" = r."offset"
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, step_key text, status text,
    settled boolean, result text, error_name text, error_message text, error_detail text,
    last_attempt_at_ms double precision, completed_at_ms double precision,
    rolled_back_at_ms double precision, rollback_failed_at_ms double precision, trimmed_before bigint, updated_at_ms double precision,
    "offset" bigint
)
where s.workflow_name = r.workflow_name
  and s.instance_id = r.instance_id
  and s.run_number = r.run_number
  and s.step_key = r.step_key

-- name: change_workflow_tokens
-- A status sets its dependent columns: when the token ended or is retried, and its status in a
-- retry of the run. For a "kept" token, the latter depends on its previous status.
update workflow_token t
set status = r.status,
    attempts = coalesce(r.attempts, t.attempts),
    input = coalesce(r.input::json, t.input),
    result = coalesce(r.result::json, t.result),
    error_name = case when r.settled then r.error_name else t.error_name end,
    error_message = case when r.settled then r.error_message else t.error_message end,
    error_detail = case when r.settled then r.error_detail::json else t.error_detail end,
    next_retry_at = to_timestamp(r.next_retry_at_ms / 1000),
    wake_at = coalesce(to_timestamp(r.wake_at_ms / 1000), t.wake_at),
    reason = coalesce(r.reason, t.reason),
    retry_status = case
        when r.kept and t.status = 'waiting_for_siblings' then t.status
        when r.kept then 'pending'
        else r.retry_status
    end,
    child_workflow_name = coalesce(r.child_workflow_name, t.child_workflow_name),
    child_instance_id = coalesce(r.child_instance_id, t.child_instance_id),
    idempotency_token = coalesce(r.idempotency_token, t.idempotency_token),
    worker = r.worker,
    lease_until = to_timestamp(r.lease_until_ms / 1000),
    updated_at = to_timestamp(r.updated_at_ms / 1000),
    completed_at = to_timestamp(r.completed_at_ms / 1000),
    "offset" = r."offset"
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, id bigint, status text,
    attempts integer, input text, result text, settled boolean, error_name text,
    error_message text, error_detail text, next_retry_at_ms double precision,
    wake_at_ms double precision, reason text, kept boolean, retry_status text,
    child_workflow_name text, child_instance_id text, idempotency_token text, worker text,
    lease_until_ms double precision, updated_at_ms double precision,
    completed_at_ms double precision, "offset" bigint
)
where t.workflow_name = r.workflow_name
  and t.instance_id = r.instance_id
  and t.run_number = r.run_number
  and t.id = r.id

-- name: deliver_workflow_events
update workflow_event e
set delivered_at = to_timestamp(r.delivered_at_ms / 1000),
    consumed_by_step_key = r.consumed_by_step_key,
    "offset" = r."offset"
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, id text,
    delivered_at_ms double precision, consumed_by_step_key text, "offset" bigint
)
where e.workflow_name = r.workflow_name
  and e.instance_id = r.instance_id
  and e.run_number = r.run_number
  and e.id = r.id

-- name: grant_workflow_slots
-- Slots are granted in order of arrival: of several grants, the first that covers a number applies.
update workflow_slot s
set granted_at = to_timestamp(g.at_ms / 1000)
from (
    select w.workflow_name, w.instance_id, w.number, min(r.at_ms) as at_ms
    from json_to_recordset(%(rows)s::json) as r (
        workflow_name text, instance_id text, through bigint, at_ms double precision
    )
    join workflow_slot w
      on w.workflow_name = r.workflow_name
     and w.instance_id = r.instance_id
     and w.number <= r.through
     and w.granted_at is null
    group by 1, 2, 3
) g
where s.workflow_name = g.workflow_name and s.instance_id = g.instance_id and s.number = g.number

-- name: insert_workflow_logs
insert into workflow_log (
    workflow_name, instance_id, run_number, id, step_key, attempt, level, category, message, data,
    is_replay, created_at
)
select
    r.workflow_name, r.instance_id, r.run_number, r.id, r.step_key, r.attempt, r.level, r.category,
    r.message, r.data::json, r.is_replay, to_timestamp(r.created_at_ms / 1000)
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, id text, step_key text,
    attempt integer, level text, category text, message text, data text, is_replay boolean,
    created_at_ms double precision
)
on conflict do nothing

-- name: insert_workflow_slots
insert into workflow_slot (
    workflow_name, instance_id, number, key, holder_id, holder_run, asked_at, granted_at
)
select r.workflow_name, r.instance_id, r.number, r.key::json, r.holder_id, r.holder_run,
       to_timestamp(r.asked_at_ms / 1000), to_timestamp(r.granted_at_ms / 1000)
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, number bigint, key text, holder_id text, holder_run integer,
    asked_at_ms double precision, granted_at_ms double precision
)
on conflict (workflow_name, instance_id, number) do nothing

-- name: insert_workflow_tokens
insert into workflow_token (
    workflow_name, instance_id, run_number, id, node_ref, task, subworkflow, status, path_id,
    parent_token_id, sibling_group, branch_index, branch_total, iteration_counts, attempts, input,
    result, error_name, error_message, error_detail, next_retry_at, wake_at, reason, retry_status,
    child_workflow_name, child_instance_id, idempotency_token, worker, lease_until, created_at,
    updated_at, completed_at, "offset"
)
select
    r.workflow_name, r.instance_id, r.run_number, r.id, r.node_ref, r.task, r.subworkflow, r.status,
    r.path_id, r.parent_token_id, r.sibling_group, r.branch_index, r.branch_total,
    r.iteration_counts::json, r.attempts, r.input::json, r.result::json, r.error_name,
    r.error_message, r.error_detail::json, to_timestamp(r.next_retry_at_ms / 1000),
    to_timestamp(r.wake_at_ms / 1000), r.reason, r.retry_status, r.child_workflow_name,
    r.child_instance_id, r.idempotency_token, r.worker, to_timestamp(r.lease_until_ms / 1000),
    to_timestamp(r.created_at_ms / 1000),
    to_timestamp(r.updated_at_ms / 1000), to_timestamp(r.completed_at_ms / 1000), r."offset"
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, id bigint, node_ref text, task text,
    subworkflow text, status text, path_id text, parent_token_id bigint, sibling_group text,
    branch_index integer, branch_total integer, iteration_counts text, attempts integer,
    input text, result text, error_name text, error_message text, error_detail text,
    next_retry_at_ms double precision, wake_at_ms double precision, reason text,
    retry_status text, child_workflow_name text, child_instance_id text,
    idempotency_token text, worker text, lease_until_ms double precision,
    created_at_ms double precision, updated_at_ms double precision,
    completed_at_ms double precision, "offset" bigint
)
on conflict do nothing

-- name: retry_workflow_runs
-- A retry copies entries of the previous run. Reopened ones and unfinished sleeps are copied
-- without their ends, and unconsumed events are copied, too. Negative sequence numbers keep their
-- order before all new ones. A retry of a graph copies all tokens: those that ended with the run
-- continue, and those that waited for siblings have as much time left as when the run ended.
with retried as materialized (
    select * from json_to_recordset(%(rows)s::json) as r (
        workflow_name text, instance_id text, run_number integer, kept text[], reopened text[],
        started_at_ms double precision, "offset" bigint
    )
),
named as (
    select r.workflow_name, r.instance_id, r.run_number, k.step_key, false as reopened,
           r.started_at_ms, r."offset"
    from retried r cross join lateral unnest(r.kept) as k (step_key)
    union all
    select r.workflow_name, r.instance_id, r.run_number, k.step_key, true, r.started_at_ms,
           r."offset"
    from retried r cross join lateral unnest(r.reopened) as k (step_key)
),
steps as (
    insert into workflow_step (
        workflow_name, instance_id, run_number, step_key, name, type, status, attempts,
        max_attempts, timeout_ms, next_retry_at, wake_at, wait_event_type, child_workflow_name,
        child_instance_id, result, error_name, error_message, error_detail, ordinal, sequence,
        created_at, updated_at, last_attempt_at, completed_at, rolled_back_at,
        rollback_failed_at, trimmed_before, "offset"
    )
    select
        s.workflow_name, s.instance_id, n.run_number, s.step_key, s.name, s.type,
        case when not n.reopened then s.status when s.type = 'sleep' then 'waiting' else 'pending' end,
        s.attempts, s.max_attempts,
        s.timeout_ms, case when not n.reopened then s.next_retry_at end, s.wake_at,
        s.wait_event_type, s.child_workflow_name, s.child_instance_id,
        case when not n.reopened then s.result end,
        case when not n.reopened then s.error_name end,
        case when not n.reopened then s.error_message end,
        case when not n.reopened then s.error_detail end,
        s.ordinal, row_number() over (run order by s.ordinal, s.sequence) - 1 - count(*) over run,
        s.created_at,
        case when n.reopened then to_timestamp(n.started_at_ms / 1000) else s.updated_at end,
        s.last_attempt_at, case when not n.reopened then s.completed_at end,
        case when not n.reopened then s.rolled_back_at end,
        case when not n.reopened then s.rollback_failed_at end, s.trimmed_before, n."offset"
    from named n
    join workflow_step s
      on s.workflow_name = n.workflow_name
     and s.instance_id = n.instance_id
     and s.run_number = n.run_number - 1
     and s.step_key = n.step_key
    window run as (partition by s.workflow_name, s.instance_id)
    on conflict do nothing
),
tokens as (
    insert into workflow_token (
        workflow_name, instance_id, run_number, id, node_ref, task, subworkflow, status, path_id,
        parent_token_id, sibling_group, branch_index, branch_total, iteration_counts, attempts,
        input, result, error_name, error_message, error_detail, next_retry_at, wake_at, reason,
        retry_status, child_workflow_name, child_instance_id, idempotency_token, worker, lease_until,
        created_at, updated_at, completed_at, "offset"
    )
    select
        t.workflow_name, t.instance_id, r.run_number, t.id, t.node_ref, t.task, t.subworkflow,
        coalesce(t.retry_status, t.status), t.path_id, t.parent_token_id, t.sibling_group,
        t.branch_index, t.branch_total, t.iteration_counts,
        case when t.retry_status is null then t.attempts else 0 end, t.input,
        case when t.retry_status is null then t.result end,
        case when t.retry_status is null then t.error_name end,
        case when t.retry_status is null then t.error_message end,
        case when t.retry_status is null then t.error_detail end,
        case when t.retry_status is null then t.next_retry_at end,
        case
            when t.retry_status is null then t.wake_at
            when t.retry_status = 'waiting_for_siblings'
                then t.wake_at + (to_timestamp(r.started_at_ms / 1000) - t.updated_at)
        end,
        case when t.retry_status is null then t.reason end, null,
        case when t.retry_status is null then t.child_workflow_name end,
        case when t.retry_status is null then t.child_instance_id end,
        case when t.retry_status is null then t.idempotency_token end,
        case when t.retry_status is null then t.worker end,
        case when t.retry_status is null then t.lease_until end, t.created_at,
        case when t.retry_status is null then t.updated_at
             else to_timestamp(r.started_at_ms / 1000) end,
        case when t.retry_status is null then t.completed_at end, r."offset"
    from retried r
    join workflow_token t
      on t.workflow_name = r.workflow_name
     and t.instance_id = r.instance_id
     and t.run_number = r.run_number - 1
    on conflict do nothing
)
insert into workflow_event (
    workflow_name, instance_id, run_number, id, type, payload, sequence, created_at, "offset"
)
select
    e.workflow_name, e.instance_id, r.run_number, e.id, e.type, e.payload,
    row_number() over (run order by e.sequence) - 1 - count(*) over run, e.created_at, r."offset"
from retried r
join workflow_event e
  on e.workflow_name = r.workflow_name
 and e.instance_id = r.instance_id
 and e.run_number = r.run_number - 1
 and e.delivered_at is null
window run as (partition by e.workflow_name, e.instance_id)
on conflict do nothing

-- name: return_workflow_slots
delete from workflow_slot s
using json_to_recordset(%(rows)s::json) as r (workflow_name text, instance_id text, number bigint)
where s.workflow_name = r.workflow_name and s.instance_id = r.instance_id and s.number = r.number

-- name: start_workflow_instances
-- Begins runs: the row of the previous run moves to workflow_run. A retry continues that run and
-- keeps its start.
with started as materialized (
    select * from json_to_recordset(%(rows)s::json) as r (
        workflow_name text, instance_id text, run_number integer, status text, params text,
        output text, error_name text, error_message text, error_detail text,
        parent_workflow_name text, parent_instance_id text, parent_run_number integer,
        parent_step_key text, deployment_id text, labels jsonb, started_at_ms double precision,
        completed_at_ms double precision, retention_until_ms double precision,
        updated_at_ms double precision, partition integer, run_offset bigint, "offset" bigint,
        retries boolean
    )
),
superseded as (
    insert into workflow_run (
        workflow_name, instance_id, run_number, status, params, output, error_name, error_message,
        error_detail, parent_workflow_name, parent_instance_id, parent_run_number, parent_step_key,
        deployment_id, updated_at, started_at, completed_at, partition, run_offset,
        "offset"
    )
    select
        i.workflow_name, i.instance_id, i.run_number, i.status, i.params, i.output, i.error_name,
        i.error_message, i.error_detail, i.parent_workflow_name, i.parent_instance_id,
        i.parent_run_number, i.parent_step_key, i.deployment_id, i.updated_at, i.started_at, i.completed_at,
        i.partition, i.run_offset, i."offset"
    from started r
    join workflow_instance i
      on i.workflow_name = r.workflow_name and i.instance_id = r.instance_id
    where r.run_number > 0 and r.run_number > i.run_number
    on conflict do nothing
)
insert into workflow_instance (
    workflow_name, instance_id, run_number, status, params, output, error_name, error_message,
    error_detail, parent_workflow_name, parent_instance_id, parent_run_number, parent_step_key,
    deployment_id, labels, created_at, updated_at, started_at, completed_at, retention_until, partition, run_offset,
    "offset"
)
select
    r.workflow_name, r.instance_id, r.run_number, r.status, r.params::json, r.output::json,
    r.error_name, r.error_message, r.error_detail::json, r.parent_workflow_name,
    r.parent_instance_id, r.parent_run_number, r.parent_step_key, r.deployment_id,
    coalesce(r.labels, '{}'),
    to_timestamp(r.started_at_ms / 1000), to_timestamp(r.updated_at_ms / 1000),
    coalesce(
        case when r.retries then (
            select i.started_at
            from workflow_instance i
            where i.workflow_name = r.workflow_name and i.instance_id = r.instance_id
        ) end,
        to_timestamp(r.started_at_ms / 1000)
    ),
    to_timestamp(r.completed_at_ms / 1000), to_timestamp(r.retention_until_ms / 1000), r.partition, r.run_offset, r."offset"
from started r
on conflict (workflow_name, instance_id) do update set
    run_number = excluded.run_number,
    status = excluded.status,
    params = excluded.params,
    output = excluded.output,
    error_name = excluded.error_name,
    error_message = excluded.error_message,
    error_detail = excluded.error_detail,
    parent_workflow_name = excluded.parent_workflow_name,
    parent_instance_id = excluded.parent_instance_id,
    parent_run_number = excluded.parent_run_number,
    parent_step_key = excluded.parent_step_key,
    deployment_id = excluded.deployment_id,
    labels = excluded.labels,
    updated_at = excluded.updated_at,
    started_at = excluded.started_at,
    completed_at = excluded.completed_at,
    retention_until = excluded.retention_until,
    partition = excluded.partition,
    run_offset = excluded.run_offset,
    "offset" = excluded."offset"

-- name: trim_workflow_steps
-- Uses the key's range of the primary key: '~' is chr(126), and keys below "key/~" are between
-- "key/" and "key/" followed by chr(127). Iterations are numbers there, so they are compared as
-- numbers.
delete from workflow_step s
using json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, step_key text, trim_before bigint
)
where s.workflow_name = r.workflow_name
  and s.instance_id = r.instance_id
  and s.run_number = r.run_number
  and s.step_key >= r.step_key || '/~'
  and s.step_key < r.step_key || '/' || chr(127)
  and substring(substr(s.step_key, length(r.step_key) + 3) from '^([0-9]{1,18})/')::bigint
      < r.trim_before

-- name: upsert_workflow_events
insert into workflow_event (
    workflow_name, instance_id, run_number, id, type, payload, sequence, created_at, delivered_at,
    consumed_by_step_key, "offset"
)
select
    r.workflow_name, r.instance_id, r.run_number, r.id, r.type, r.payload::json, r.sequence,
    to_timestamp(r.created_at_ms / 1000), to_timestamp(r.delivered_at_ms / 1000),
    r.consumed_by_step_key, r."offset"
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, id text, type text, payload text,
    sequence bigint, created_at_ms double precision, delivered_at_ms double precision,
    consumed_by_step_key text, "offset" bigint
)
on conflict (workflow_name, instance_id, run_number, id) do update set
    type = excluded.type,
    payload = excluded.payload,
    sequence = excluded.sequence,
    created_at = excluded.created_at,
    delivered_at = excluded.delivered_at,
    consumed_by_step_key = excluded.consumed_by_step_key,
    "offset" = excluded."offset"

-- name: upsert_workflow_owners
insert into workflow_owner (
    partition, epoch, owner, workflows, known, params_schemas, limits, claimed_at
)
select r.partition, r.epoch, r.owner, r.workflows, r.known, r.params_schemas, r.limits,
       to_timestamp(r.claimed_at_ms / 1000)
from json_to_recordset(%(rows)s::json) as r (
    partition integer, epoch bigint, owner text, workflows text[], known text[], params_schemas json,
    limits json, claimed_at_ms double precision
)
on conflict (partition) do update set
    epoch = excluded.epoch,
    owner = excluded.owner,
    workflows = excluded.workflows,
    known = array(
        select distinct name collate "C" from unnest(workflow_owner.known || excluded.known) as n (name)
        order by 1
    ),
    params_schemas = excluded.params_schemas,
    limits = excluded.limits,
    claimed_at = excluded.claimed_at

-- name: upsert_workflow_steps
-- The sequence is that of the event which showed the step first. An event that ends a later attempt
-- does not have its start time; the event that began the attempt does.
insert into workflow_step (
    workflow_name, instance_id, run_number, step_key, name, type, status, attempts, max_attempts,
    timeout_ms, next_retry_at, wake_at, wait_event_type, child_workflow_name, child_instance_id,
    result, error_name, error_message, error_detail, ordinal, sequence, created_at, updated_at,
    last_attempt_at, completed_at, rolled_back_at, rollback_failed_at, trimmed_before, "offset"
)
select
    r.workflow_name, r.instance_id, r.run_number, r.step_key, r.name, r.type, r.status, r.attempts,
    r.max_attempts, r.timeout_ms, to_timestamp(r.next_retry_at_ms / 1000),
    to_timestamp(r.wake_at_ms / 1000), r.wait_event_type, r.child_workflow_name,
    r.child_instance_id, r.result::json, r.error_name, r.error_message, r.error_detail::json,
    r.ordinal, r.sequence, to_timestamp(r.created_at_ms / 1000),
    to_timestamp(r.updated_at_ms / 1000), to_timestamp(r.last_attempt_at_ms / 1000),
    to_timestamp(r.completed_at_ms / 1000), to_timestamp(r.rolled_back_at_ms / 1000),
    to_timestamp(r.rollback_failed_at_ms / 1000),
    r.trimmed_before, r."offset"
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, step_key text, name text, type text,
    status text, attempts integer, max_attempts integer, timeout_ms bigint,
    next_retry_at_ms double precision, wake_at_ms double precision, wait_event_type text,
    child_workflow_name text, child_instance_id text, result text, error_name text,
    error_message text, error_detail text, ordinal bigint, sequence bigint,
    created_at_ms double precision, updated_at_ms double precision,
    last_attempt_at_ms double precision, completed_at_ms double precision,
    rolled_back_at_ms double precision, rollback_failed_at_ms double precision, trimmed_before bigint, "offset" bigint
)
on conflict (workflow_name, instance_id, run_number, step_key) do update set
    name = excluded.name,
    type = excluded.type,
    status = excluded.status,
    attempts = excluded.attempts,
    max_attempts = excluded.max_attempts,
    timeout_ms = excluded.timeout_ms,
    next_retry_at = excluded.next_retry_at,
    wake_at = excluded.wake_at,
    wait_event_type = excluded.wait_event_type,
    child_workflow_name = excluded.child_workflow_name,
    child_instance_id = excluded.child_instance_id,
    result = excluded.result,
    error_name = excluded.error_name,
    error_message = excluded.error_message,
    error_detail = excluded.error_detail,
    ordinal = excluded.ordinal,
    created_at = excluded.created_at,
    updated_at = excluded.updated_at,
    last_attempt_at = coalesce(excluded.last_attempt_at, workflow_step.last_attempt_at),
    completed_at = excluded.completed_at,
    rolled_back_at = excluded.rolled_back_at,
    rollback_failed_at = excluded.rollback_failed_at,
    trimmed_before = excluded.trimmed_before,
    "offset" = excluded."offset"
