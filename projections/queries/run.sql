-- An instance by its id alone, in any workflow, with one key lookup per workflow. There are two if
-- callers used the same id in two workflows.
select i.workflow_name, i.instance_id, i.status, i.error_name, i.error_message, i.deployment_id,
       i.created_at, i.started_at, i.updated_at, i.completed_at, {waits} as waits,
       i.params::text as input, i.output::text as output, i.partition, i."offset"
from ({workflows}) as known (name)
join workflow_instance i on i.workflow_name = known.name and i.instance_id = %(run_id)s
order by i.workflow_name
limit 2
