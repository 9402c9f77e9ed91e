-- Where the history of the current run begins. A retry goes on with the runs before it, which have begun
-- when it did.
select i.run_number, i.partition, least(i.run_offset, min(r.run_offset)) as "offset"
from workflow_instance i
left join workflow_run r
  on r.workflow_name = i.workflow_name
 and r.instance_id = i.instance_id
 and r.started_at = i.started_at
where i.workflow_name = %(workflow_name)s and i.instance_id = %(instance_id)s
group by i.run_number, i.partition, i.run_offset
