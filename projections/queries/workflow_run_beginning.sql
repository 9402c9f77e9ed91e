-- Where the history of a run begins: for a retry, with the first of the runs that it continues.
with run as (
    select run_number, partition, started_at, run_offset
    from workflow_instance
    where workflow_name = %(workflow_name)s
      and instance_id = %(instance_id)s
      and run_number = %(run_number)s
    union all
    select run_number, partition, started_at, run_offset
    from workflow_run
    where workflow_name = %(workflow_name)s
      and instance_id = %(instance_id)s
      and run_number = %(run_number)s
)
select run.run_number, run.partition, least(run.run_offset, min(before.run_offset)) as "offset"
from run
left join workflow_run before
  on before.workflow_name = %(workflow_name)s
 and before.instance_id = %(instance_id)s
 and before.started_at = run.started_at
group by run.run_number, run.partition, run.run_offset
