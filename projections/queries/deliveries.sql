-- Deliveries: outcomes, traces, effects, connections and parked deliveries.

-- name: deliveries
select received_at, request_id, event_id, source, type, subject, user_id, status, reason, rows, rejected
from deliveries
where (received_at, request_id) < (%(received_at)s::timestamptz, %(request_id)s)
  and received_at >= %(since)s::timestamptz
  and received_at < %(until)s::timestamptz
  and (%(source)s::text is null or source = %(source)s)
  and (%(type)s::text is null or type = %(type)s)
  and (%(user_id)s::text is null or user_id = %(user_id)s)
  and (%(status)s::text is null or status = %(status)s)
  and (%(reason)s::text is null or reason = %(reason)s)
order by received_at desc, request_id desc
limit %(limit)s

-- name: deliveries_named
select event_id, source, type, user_id, partition, "offset"
from webhook_outcomes
where event_id = any(%(event_ids)s::text[])

-- name: deliveries_of_user
-- A dead letter counts until it is replayed, or its delivery is processed in another way.
select
    (select count(*) from webhook_outcomes where user_id = %(user_id)s) as raw_events,
    (
        select count(*)
        from dead_letters d
        join webhook_outcomes o on o.event_id = d.event_id
        where (
              o.user_id = %(user_id)s
              or (o.status = 'dead' and o.user_id is null and o.subject = any(%(subjects)s::text[]))
          )
          and d.replayed_at is null
          and not is_copy(d)
          and not was_processed(d)
    ) as dead_letters

-- name: dead_without_user
select event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
       partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position
from webhook_outcomes
where status = 'dead' and user_id is null and subject = any(%(subjects)s::text[])
order by received_at desc
limit %(limit)s

-- name: delivery_of
-- The delivery with this id, or that of the request with this id that brought it or a copy of it.
select event_id from webhook_outcomes where event_id = %(id)s
union all
select event_id from webhook_outcomes where request_id = %(id)s
union all
select event_id from duplicates where request_id = %(id)s
union all
select event_id from request_answers where request_id = %(id)s and event_id <> ''
limit 1

-- name: copies
select request_id, at from duplicates where event_id = %(event_id)s
union all
select request_id, at from request_answers where event_id = %(event_id)s
order by at
limit 100

-- name: outcome
select event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
       coalesce(rejected_fields, '[]') as rejected_fields, rejected_fields_total,
       partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position, replay
from webhook_outcomes
where event_id = %(event_id)s

-- name: outcome_counts
select status, reason, count(*) as deliveries
from webhook_outcomes
where received_at >= %(since)s::timestamptz
group by status, reason
order by status, reason

-- name: outcomes_of_user
select event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
       coalesce(rejected_fields, '[]') as rejected_fields, rejected_fields_total,
       partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position
from webhook_outcomes
where user_id = %(user_id)s
order by received_at desc
limit %(limit)s

-- name: upsert_webhook_outcomes
insert into webhook_outcomes (
    event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
    rejected_fields, rejected_fields_total, partition, "offset", received_at, admitted_at,
    parked_at, released_at, at, stage, position, replay, waited_for, released_by, trace
)
select
    event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
    rejected_fields::jsonb, rejected_fields_total, partition, "offset", received_at, admitted_at,
    parked_at, released_at, at, stage, position, replay, waited_for, released_by, trace
from unnest(%(rows)s::pg_temp.webhook_outcomes_row[])
on conflict (event_id) do update set (
    request_id, source, type, subject, user_id, status, reason, rows, rejected, rejected_fields,
    rejected_fields_total, partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position, replay,
    waited_for, released_by, trace, earlier
) = (
    select
    request_id, source, type, subject, user_id, status, reason, rows, rejected, rejected_fields,
    rejected_fields_total, partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position, replay,
    waited_for, released_by, trace, earlier
    from further_outcome(webhook_outcomes, excluded)
)

-- name: insert_duplicates
insert into duplicates (
    request_id, event_id, partition, "offset", first_offset, received_at, at
)
select request_id, event_id, partition, "offset", first_offset, received_at, at
from unnest(%(rows)s::pg_temp.duplicates_row[])
on conflict (request_id) do nothing

-- name: insert_effects
insert into effects (event_id, name, workflow, instance_id, event_type, at)
select r.event_id, r.name, r.workflow, r.instance_id, r.event_type, to_timestamp(r.at_ms / 1000.0)
from json_to_recordset(%(rows)s::json) as r (
    event_id text, name text, workflow text, instance_id text, event_type text, at_ms bigint
)
on conflict (event_id, name) do nothing

-- name: effects_of
select name, workflow, instance_id, event_type, at
from effects
where event_id = %(event_id)s
order by name

-- name: insert_request_answers
insert into request_answers (
    request_id, source, code, reason, detail, event_id, size, peer, left_out, at
)
select request_id, source, code, reason, detail, event_id, size, peer, left_out, at
from unnest(%(rows)s::pg_temp.request_answers_row[])
on conflict (request_id) do nothing

-- name: journeys
select
    (o.journey).status, (o.journey).reason, (o.journey).rows, (o.journey).rejected,
    coalesce((o.journey).rejected_fields, '[]') as rejected_fields,
    coalesce((o.journey).rejected_fields_total, 0) as rejected_fields_total,
    (o.journey).at, (o.journey).position, coalesce((o.journey).replay, '') as replay,
    journey_hops(o.journey) as hops
from webhook_outcomes newest,
    lateral (
        select e
        from jsonb_populate_recordset(null::webhook_outcomes, coalesce(newest.earlier, '[]')) as e
        union all
        select newest
    ) as o (journey)
where newest.event_id = %(event_id)s
order by (o.journey).at

-- name: traces_by_request
-- A request that was appended twice has a delivery and a copy: the delivery comes first.
select request_id, event_id, user_id, level, hops, started_at, ended_at
from traces
where request_id = %(request_id)s
order by hops @> '[{"stage": "duplicate"}]', started_at desc
limit %(limit)s

-- name: traces_newest
select request_id, event_id, user_id, level, hops, started_at, ended_at
from traces
where {condition}
order by started_at desc, request_id
limit %(limit)s

-- name: refusal
select request_id, source, code, reason, detail, size, peer, left_out, at
from request_answers
where request_id = %(request_id)s

-- name: parked
select event_id, request_id, source, type, subject, reason, 'webhooks' as original_topic,
       partition as original_partition, "offset" as original_offset, parked_at, position
from webhook_outcomes
where status = 'parked'
  and (%(reason)s::text is null or reason = %(reason)s)
  and (%(source)s::text is null or source = %(source)s)
  and (%(type)s::text is null or type = %(type)s)
  and (%(user_id)s::text is null or user_id = %(user_id)s)
  and (parked_at, partition, "offset")
    < (%(at)s::timestamptz, %(partition)s::integer, %(offset)s::bigint)
order by parked_at desc, partition desc, "offset" desc
limit %(limit)s

-- name: parked_of
select event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
       coalesce(rejected_fields, '[]') as rejected_fields, rejected_fields_total,
       partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position
from webhook_outcomes
where status = 'parked' and subject = any(%(subjects)s)
order by parked_at
limit %(limit)s

-- name: parked_oldest
-- Least recently examined first, so that repeated calls make progress.
select event_id, partition, "offset", position
from webhook_outcomes
where status = 'parked'
  and (%(subjects)s::text[] is null or subject = any(%(subjects)s))
order by at, event_id
limit %(limit)s

-- name: prune_deliveries
-- Rows of records that the topics no longer retain, so they can be neither replayed nor read again.
with letters as (
    delete from dead_letters where dead_at < to_timestamp(%(letters_before_ms)s / 1000.0)
),
replays as (
    delete from dead_letter_replays
    where replayed_at < to_timestamp(%(letters_before_ms)s / 1000.0)
),
copies as (
    delete from duplicates where at < to_timestamp(%(traces_before_ms)s / 1000.0)
)
delete from request_answers where at < to_timestamp(%(traces_before_ms)s / 1000.0)

-- name: record_unexpected_hits
-- Adds current hits, and merges those of minutes that ended long ago into one row.
with old as (
    delete from unexpected_hits
    where project_id = %(project_id)s and minute > '-infinity'
      and minute < date_trunc('minute', %(at)s::timestamptz) - interval '1 hour'
    returning hits, last_at
)
insert into unexpected_hits as u (project_id, minute, hits, last_at)
select %(project_id)s, date_trunc('minute', %(at)s::timestamptz), %(hits)s::bigint, %(at)s
union all
select %(project_id)s, '-infinity', sum(hits), max(last_at) from old having count(*) > 0
on conflict (project_id, minute) do update set
    hits = u.hits + excluded.hits,
    last_at = greatest(u.last_at, excluded.last_at)

-- name: unexpected_hits
select coalesce(sum(hits), 0)::bigint as lifetime,
       coalesce(sum(hits) filter (
           where minute >= date_trunc('minute', %(at)s::timestamptz - interval '15 minutes')
       ), 0)::bigint as last_15m,
       max(last_at) as last_at
from unexpected_hits
where project_id = %(project_id)s

-- name: active_connections
-- Ordered by a digest, so that the position of an iteration names no user.
select terra_user_id
from terra_connections
where active and md5(terra_user_id) > %(after)s
order by md5(terra_user_id)
limit %(limit)s

-- name: active_connections_of
select terra_user_id
from terra_connections
where active and md5(terra_user_id) = any(%(digests)s)

-- name: connections_of_user
select terra_user_id, provider, active, reference_id, scopes, deactivated_at,
       -- The delivery that closes a connection has no reference.
       (select s.sent_at from value_source(column_sources, 'reference_id') as s) as connected_at
from terra_connections
where user_id = %(user_id)s
order by terra_user_id

-- name: dead_of_user
-- The condition on the status is that of the index webhook_outcomes_dead.
select event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
       partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position
from webhook_outcomes
where case when status = 'dead' then 'error' else 'info' end = 'error'
  and (user_id = %(user_id)s or (user_id is null and subject = any(%(subjects)s)))
order by received_at desc
limit %(limit)s

-- name: lab_status
select terra_status from lab_uploads where id = %(upload_id)s

-- name: sources_of_user
select source, count(*) as rows, max(updated_at) as updated_at
from {table}
where user_id = %(user_id)s
group by source

-- name: subjects_of_user
select {key} as subject from {table} where user_id = %(user_id)s

-- name: data_quality
select *
from data_quality_since(date_trunc('week', now() at time zone 'UTC')::date - 7 * (%(weeks)s::int - 1))
where %(source)s::text is null or source = %(source)s
order by week desc, source, provider

-- name: rejected_values
select *
from rejected_values_since(date_trunc('week', now() at time zone 'UTC')::date - 7 * (%(weeks)s::int - 1))
where %(source)s::text is null or source = %(source)s
order by week desc, number desc, source, provider, field, reason
limit %(limit)s

-- name: skipped_deliveries
select *
from skipped_deliveries_since(date_trunc('week', now() at time zone 'UTC')::date - 7 * (%(weeks)s::int - 1))
where %(source)s::text is null or source = %(source)s
order by week desc, number desc, source, provider, type, reason
limit %(limit)s

-- name: connection_states
-- A page of the connections, each of which costs some index lookups: all of them may take longer
-- than a statement may.
with page as materialized (
    select max(terra_user_id) as last
    from (
        select terra_user_id
        from terra_connections
        where active and terra_user_id > %(after)s
        order by terra_user_id
        limit %(connections)s
    ) as next
),
activity as materialized (
    select *
    from connection_activity
    where terra_user_id > %(after)s and terra_user_id <= (select last from page)
)
select
    last,
    now() as counted_at,
    (
        select coalesce(json_agg(c), '[]')
        from (
            select provider, state, count(*) as connections from activity group by provider, state
        ) as c
    ) as connections,
    (
        select coalesce(json_agg(n), '[]')
        from (
            select * from activity where state <> 'receiving'
            order by silent_days desc, terra_user_id
            limit %(listed)s
        ) as n
    ) as not_receiving
from page

-- name: connection_activity_of_user
select *
from connection_activity
where user_id = %(user_id)s
order by terra_user_id

-- name: store_silence_limits
-- Writes nothing if nothing has changed.
with configured as (
    select * from json_to_recordset(%(limits)s::json) as l (source text, provider text, days integer)
),
removed as (
    delete from silence_limits l
    where not exists (
        select from configured c where c.source = l.source and c.provider = l.provider
    )
)
insert into silence_limits (source, provider, days)
select source, provider, days from configured
except
select source, provider, days from silence_limits
on conflict (source, provider) do update set days = excluded.days

-- name: traced_deliveries
-- Deliveries for spans, with their earlier outcomes, in the order of their receipt.
select
    event_id, request_id, source, type, trace, received_at, status, reason, rows, admitted_at, parked_at,
    released_at, at, position, replay, waited_for, coalesce(earlier, '[]') as earlier
from webhook_outcomes
where (received_at, event_id) > (%(received_at)s::timestamptz, %(event_id)s)
  and received_at >= %(since)s::timestamptz
  and received_at < %(until)s::timestamptz
order by received_at, event_id
limit %(limit)s
