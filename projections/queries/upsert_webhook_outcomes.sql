insert into webhook_outcomes (
    event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
    partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position, replay,
    waited_for, released_by
)
select
    event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
    partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position, replay,
    waited_for, released_by
from unnest(%(rows)s::pg_temp.webhook_outcomes_row[])
on conflict (event_id) do update set (
    request_id, source, type, subject, user_id, status, reason, rows, rejected, partition,
    "offset", received_at, admitted_at, parked_at, released_at, at, stage, position, replay,
    waited_for, released_by, earlier
) = (
    select
    request_id, source, type, subject, user_id, status, reason, rows, rejected, partition,
    "offset", received_at, admitted_at, parked_at, released_at, at, stage, position, replay,
    waited_for, released_by, earlier
    from further_outcome(webhook_outcomes, excluded)
)
