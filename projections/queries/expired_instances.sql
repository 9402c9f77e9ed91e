select workflow_name as workflow, instance_id, retention_until, updated_at
from workflow_instance
where retention_until <= %(until)s::timestamptz
  and (retention_until, workflow_name, instance_id)
    > (%(after_until)s::timestamptz, %(after_workflow)s::text collate "C", %(after_id)s::text collate "C")
  and (%(workflow)s::text is null or workflow_name = %(workflow)s)
order by retention_until, workflow_name, instance_id
limit %(limit)s
