insert into webhook_outcomes (
    event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
    partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position
)
select
    event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
    partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position
from unnest(%(rows)s::pg_temp.webhook_outcomes_row[])
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
