select i.workflow_name, i.instance_id, i.run_number, i.status, i.params::text as params,
       i.output::text as output, i.error_name, i.error_message,
       i.error_detail::text as error_detail, i.parent_workflow_name, i.parent_instance_id,
       i.parent_run_number, i.parent_step_key, i.deployment_id, i.labels, i.created_at, i.updated_at, i.started_at,
       i.completed_at, i.retention_until, i.partition, i."offset", to_jsonb(s) as current_step,
       t.current_tokens, l.awaited_slot
from workflow_instance i
{current_step}where i.workflow_name = %(workflow_name)s and i.instance_id = %(instance_id)s
