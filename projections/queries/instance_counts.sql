select workflow_name as workflow, status, count(*) as instances
from workflow_instance
group by workflow_name, status
order by workflow_name, status
