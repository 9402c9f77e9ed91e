-- A stage that reads a delivery again writes a shorter journey than the one already there.
insert into traces (request_id, event_id, user_id, level, hops, started_at, ended_at)
select
    r.request_id, r.event_id, r.user_id, r.level, r.hops,
    to_timestamp((r.hops -> 0 ->> 'at_ms')::bigint / 1000.0),
    to_timestamp((r.hops -> -1 ->> 'at_ms')::bigint / 1000.0)
from json_to_recordset(%(rows)s::json) as r (
    request_id text, event_id text, user_id text, level text, hops jsonb
)
on conflict (request_id) do update set
    event_id = excluded.event_id,
    user_id = excluded.user_id,
    level = excluded.level,
    hops = excluded.hops,
    started_at = excluded.started_at,
    ended_at = excluded.ended_at
where jsonb_array_length(excluded.hops) >= jsonb_array_length(traces.hops)
