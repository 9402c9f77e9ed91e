select name, workflow, instance_id, event_type, at
from effects
where event_id = %(event_id)s
order by name
