-- The current step is the open one that was reached last; of an errored instance, the errored one.
-- Errors that the code has caught are behind it, and what is complete stands at nothing.
select i.workflow_name, i.instance_id, i.run_number, i.status, i.params::text as params,
       i.output::text as output, i.error_name, i.error_message,
       i.error_detail::text as error_detail, i.parent_workflow_name, i.parent_instance_id,
       i.parent_run_number, i.parent_step_key, i.created_at, i.updated_at, i.started_at,
       i.completed_at, i.partition, i."offset", to_jsonb(s) as current_step
from workflow_instance i
left join lateral (
    select step_key, name, type, status, attempts, max_attempts, timeout_ms, next_retry_at,
           wake_at, wait_event_type, last_attempt_at, error_name, error_message
    from workflow_step
    where workflow_name = i.workflow_name
      and instance_id = i.instance_id
      and run_number = i.run_number
      and status in ('pending', 'waiting', 'errored')
      and (status = 'errored') = (i.status = 'errored')
      and i.status <> 'complete'
    order by ordinal desc, sequence desc
    limit 1
) s on true
where i.workflow_name = %(workflow_name)s and i.instance_id = %(instance_id)s
