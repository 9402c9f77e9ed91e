insert into dead_letters (
    partition, "offset", event_id, request_id, key, value, headers,
    original_topic, original_partition, original_offset, reason, message, stage, rule,
    dead_at, replayed_at
)
select
    r.partition, r."offset", r.event_id, r.request_id, decode(r.key, 'base64'),
    decode(r.value, 'base64'), r.headers,
    r.original_topic, r.original_partition, r.original_offset, r.reason, r.message, r.stage,
    r.rule,
    to_timestamp(r.dead_at_ms / 1000.0),
    replays.replayed_at
from json_to_recordset(%(rows)s::json) as r (
    partition integer, "offset" bigint, event_id text, request_id text, key text, value text,
    headers json, original_topic text, original_partition integer, original_offset bigint,
    reason text, message text, stage text, rule text, dead_at_ms bigint
)
left join dead_letter_replays replays
  on replays.partition = r.partition and replays."offset" = r."offset"
on conflict (partition, "offset") do nothing
