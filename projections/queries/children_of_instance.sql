select workflow_name, instance_id, status
from workflow_instance
where parent_workflow_name = %(workflow_name)s and parent_instance_id = %(instance_id)s
