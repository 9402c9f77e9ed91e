insert into webhook_outcomes (
    event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
    partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position
)
select
    r.event_id, r.request_id, r.source, r.type, r.subject, r.user_id, r.status, r.reason, r.rows, r.rejected,
    r.partition, r."offset",
    to_timestamp(r.received_at_ms / 1000), to_timestamp(r.admitted_at_ms / 1000),
    to_timestamp(nullif(r.parked_at_ms, 0) / 1000), to_timestamp(nullif(r.released_at_ms, 0) / 1000),
    to_timestamp(r.at_ms / 1000), r.stage, r.position
-- Moments travel as what to_timestamp takes: bigint would be divided as numeric, which is slow.
from json_to_recordset(%(rows)s::json) as r (
    event_id text, request_id text, source text, type text, subject text, user_id text,
    status text, reason text, rows integer, rejected integer, partition integer, "offset" bigint,
    received_at_ms double precision, admitted_at_ms double precision,
    parked_at_ms double precision, released_at_ms double precision, at_ms double precision,
    stage text, position text
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
    rejected = excluded.rejected,
    partition = excluded.partition,
    "offset" = excluded."offset",
    received_at = excluded.received_at,
    admitted_at = excluded.admitted_at,
    parked_at = excluded.parked_at,
    released_at = excluded.released_at,
    at = excluded.at,
    stage = excluded.stage,
    position = excluded.position
