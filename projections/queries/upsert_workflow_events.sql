insert into workflow_event (
    workflow_name, instance_id, run_number, id, type, payload, sequence, created_at, delivered_at,
    consumed_by_step_key, "offset"
)
select
    r.workflow_name, r.instance_id, r.run_number, r.id, r.type, r.payload::json, r.sequence,
    to_timestamp(r.created_at_ms / 1000), to_timestamp(r.delivered_at_ms / 1000),
    r.consumed_by_step_key, r."offset"
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, id text, type text, payload text,
    sequence bigint, created_at_ms double precision, delivered_at_ms double precision,
    consumed_by_step_key text, "offset" bigint
)
on conflict (workflow_name, instance_id, run_number, id) do update set
    type = excluded.type,
    payload = excluded.payload,
    sequence = excluded.sequence,
    created_at = excluded.created_at,
    delivered_at = excluded.delivered_at,
    consumed_by_step_key = excluded.consumed_by_step_key,
    "offset" = excluded."offset"
