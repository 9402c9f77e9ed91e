select run_number, status, params::text as params, output::text as output, error_name,
       error_message, error_detail::text as error_detail, updated_at, started_at, completed_at
from workflow_instance
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = coalesce(%(run_number)s::bigint, run_number)
union all
select run_number, status, params::text, output::text, error_name, error_message,
       error_detail::text, updated_at, started_at, completed_at
from workflow_run
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s::bigint
limit 1
