select workflow_name, instance_id, run_number, status, output::text as output,
       error_name, error_message, labels,
       created_at, updated_at, started_at, completed_at, partition, "offset"
from workflow_instance
where workflow_name = %(workflow_name)s {filter}
  and (created_at, instance_id)
    {beyond} (%(created_at)s::timestamptz, %(instance_id)s::text collate "C")
order by created_at {order}, instance_id {order}
limit %(limit)s
