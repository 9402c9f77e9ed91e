select workflow_name as workflow, count(*) as instances
from workflow_instance
where retention_until <= %(until)s::timestamptz
  and (%(workflow)s::text is null or workflow_name = %(workflow)s)
group by workflow_name
order by workflow_name
