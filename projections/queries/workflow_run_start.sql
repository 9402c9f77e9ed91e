-- Position of the first record of a run, current or earlier.
select partition, run_offset as "offset"
from workflow_instance
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s
union all
select partition, run_offset as "offset"
from workflow_run
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s
