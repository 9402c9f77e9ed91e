select workflow_name, instance_id, run_number,
       id, step_key, attempt, level, category, message, data::text as data, is_replay,
       created_at
from workflow_log
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s {filter}
  and id {beyond} %(id)s::text collate "C"
order by id {order}
limit %(limit)s
