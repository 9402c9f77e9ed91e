insert into effects (event_id, name, workflow, instance_id, event_type, at)
select r.event_id, r.name, r.workflow, r.instance_id, r.event_type, to_timestamp(r.at_ms / 1000.0)
from json_to_recordset(%(rows)s::json) as r (
    event_id text, name text, workflow text, instance_id text, event_type text, at_ms bigint
)
on conflict (event_id, name) do nothing
