select workflow_name, instance_id, run_number,
       id, type, payload::text as payload, sequence, created_at, delivered_at,
       consumed_by_step_key
from workflow_event
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s
  and sequence {beyond} %(sequence)s::bigint
order by sequence {order}
limit %(limit)s
