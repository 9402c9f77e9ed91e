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
