insert into workflow_log (
    workflow_name, instance_id, run_number, id, step_key, attempt, level, category, message, data,
    is_replay, created_at
)
select
    r.workflow_name, r.instance_id, r.run_number, r.id, r.step_key, r.attempt, r.level, r.category,
    r.message, r.data::json, r.is_replay, to_timestamp(r.created_at_ms / 1000)
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, id text, step_key text,
    attempt integer, level text, category text, message text, data text, is_replay boolean,
    created_at_ms double precision
)
on conflict do nothing
