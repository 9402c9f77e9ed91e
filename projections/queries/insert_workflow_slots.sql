insert into workflow_slot (
    workflow_name, instance_id, number, key, holder_id, holder_run, asked_at, granted_at
)
select r.workflow_name, r.instance_id, r.number, r.key::json, r.holder_id, r.holder_run,
       to_timestamp(r.asked_at_ms / 1000), to_timestamp(r.granted_at_ms / 1000)
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, number bigint, key text, holder_id text, holder_run integer,
    asked_at_ms double precision, granted_at_ms double precision
)
on conflict (workflow_name, instance_id, number) do nothing
