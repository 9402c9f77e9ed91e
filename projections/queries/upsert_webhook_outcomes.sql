insert into webhook_outcomes (
    event_id, request_id, source, type, subject, user_id, status, reason, rows,
    partition, "offset", received_at, at
)
select
    r.event_id, r.request_id, r.source, r.type, r.subject, r.user_id, r.status, r.reason, r.rows,
    r.partition, r."offset",
    to_timestamp(r.received_at_ms / 1000.0), to_timestamp(r.at_ms / 1000.0)
from json_to_recordset(%(rows)s::json) as r (
    event_id text, request_id text, source text, type text, subject text, user_id text,
    status text, reason text, rows integer, partition integer, "offset" bigint,
    received_at_ms bigint, at_ms bigint
)
on conflict (event_id) do update set
    request_id = excluded.request_id,
    source = excluded.source,
    type = excluded.type,
    subject = excluded.subject,
    user_id = excluded.user_id,
    status = excluded.status,
    reason = excluded.reason,
    rows = excluded.rows,
    partition = excluded.partition,
    "offset" = excluded."offset",
    received_at = excluded.received_at,
    at = excluded.at
