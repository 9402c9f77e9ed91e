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
