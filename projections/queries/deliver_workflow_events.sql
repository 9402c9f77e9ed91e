update workflow_event e
set delivered_at = to_timestamp(r.delivered_at_ms / 1000),
    consumed_by_step_key = r.consumed_by_step_key,
    "offset" = r."offset"
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, id text,
    delivered_at_ms double precision, consumed_by_step_key text, "offset" bigint
)
where e.workflow_name = r.workflow_name
  and e.instance_id = r.instance_id
  and e.run_number = r.run_number
  and e.id = r.id
