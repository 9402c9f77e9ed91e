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
