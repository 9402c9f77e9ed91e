select i.workflow_name, i.instance_id, i.status, i.output::text as output, i.error_name,
       i.error_message, i.error_detail::text as error_detail
from unnest(%(workflow_names)s::text[], %(instance_ids)s::text[])
    as requested (workflow_name, instance_id)
join workflow_instance i using (workflow_name, instance_id)
