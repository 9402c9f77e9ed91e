select workflow_name, instance_id, run_number,
       step_key, name, type, status, attempts, max_attempts, timeout_ms, next_retry_at,
       wake_at, wait_event_type, child_workflow_name, child_instance_id, result::text as result,
       error_name, error_message, error_detail::text as error_detail, ordinal, sequence,
       created_at, updated_at, last_attempt_at, completed_at, rolled_back_at,
       rollback_failed_at, trimmed_before
from workflow_step
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s
  and (ordinal, sequence) {beyond} (%(ordinal)s::bigint, %(sequence)s::bigint)
order by ordinal {order}, sequence {order}
limit %(limit)s
