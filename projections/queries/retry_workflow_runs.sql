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
