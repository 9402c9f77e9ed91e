-- Instances with params that contain user_id, ordered by key; the caller parses the params.
select
    i.workflow_name, i.instance_id, i.status, i.params::text as params, i.created_at,
    exists (
        select from effects e
        where e.workflow = i.workflow_name and e.instance_id = i.instance_id
    ) as has_effect
from workflow_instance i
where (i.workflow_name, i.instance_id) > (%(workflow_name)s, %(instance_id)s)
  and i.params::text like '%%user_id%%'
order by i.workflow_name, i.instance_id
limit %(limit)s
