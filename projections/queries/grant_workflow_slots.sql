-- Slots are granted in order of arrival: of several grants, the first that covers a number applies.
update workflow_slot s
set granted_at = to_timestamp(g.at_ms / 1000)
from (
    select w.workflow_name, w.instance_id, w.number, min(r.at_ms) as at_ms
    from json_to_recordset(%(rows)s::json) as r (
        workflow_name text, instance_id text, through bigint, at_ms double precision
    )
    join workflow_slot w
      on w.workflow_name = r.workflow_name
     and w.instance_id = r.instance_id
     and w.number <= r.through
     and w.granted_at is null
    group by 1, 2, 3
) g
where s.workflow_name = g.workflow_name and s.instance_id = g.instance_id and s.number = g.number
