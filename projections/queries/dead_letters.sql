-- Dead letters, and the selection of deliveries to reprocess.

-- name: dead_letter
select d.partition, d."offset", d.event_id, d.request_id, original_topic, original_partition,
       original_offset, d.reason, message, d.stage, rule, dead_at, replayed_at, expired_at, key, value,
       headers, o.source, o.type, o.subject, o.user_id
from dead_letters d
left join webhook_outcomes o on o.event_id = d.event_id
where d.partition = %(partition)s and d."offset" = %(offset)s

-- name: dead_letter_counts
select coalesce(stage, '') as stage, reason, count(*) as dead_letters
from dead_letters d
where replayed_at is null
  and expired_at is null
  and not is_copy(d)
  and not was_processed(d)
group by 1, 2

-- name: dead_letters
-- Of a delivery that died before its user connected, the outcome has no user.
select d.partition, d."offset", d.event_id, d.request_id, original_topic, original_partition,
       original_offset, d.reason, message, d.stage, rule, dead_at, replayed_at, expired_at,
       o.source, o.type, o.subject, o.user_id
from dead_letters d
left join webhook_outcomes o on o.event_id = d.event_id
where (dead_at, d.partition, d."offset")
    < (%(at)s::timestamptz, %(partition)s::integer, %(offset)s::bigint)
  and (%(reason)s::text is null or d.reason = %(reason)s)
  and (%(source)s::text is null or o.source = %(source)s)
  and (%(type)s::text is null or o.type = %(type)s)
  and (%(user_id)s::text is null or o.user_id = %(user_id)s)
  and not is_copy(d)
  and not was_processed(d)
order by dead_at desc, d.partition desc, d."offset" desc
limit %(limit)s

-- name: dead_reasons
-- Dead letters that were never put back, and parked deliveries, by reason: of each the newest.
with failed as (
    (
        select 'dead' as state, d.reason, d.dead_at as at
        from dead_letters d
        where d.replayed_at is null and d.expired_at is null and not is_copy(d) and not was_processed(d)
        order by d.dead_at desc
        limit %(limit)s
    )
    union all
    (
        select 'parked', reason, parked_at
        from webhook_outcomes
        where status = 'parked'
        order by parked_at desc
        limit %(limit)s
    )
)
select
    state, reason, count(*) as deliveries,
    count(*) filter (where at >= %(since)s::timestamptz) as new,
    min(at) as first_at, max(at) as last_at
from failed
group by state, reason
order by state, deliveries desc, reason
limit %(groups)s

-- name: dead_letters_of
select partition, "offset", event_id, request_id, original_topic, original_partition,
       original_offset, reason, message, stage, rule, dead_at, replayed_at, expired_at
from dead_letters d
where event_id = %(event_id)s
  and not is_copy(d)
order by dead_at
limit 100

-- name: delete_dead_letters
with deleted as (
    delete from dead_letters d
    using json_to_recordset(%(rows)s::json) as r (
        topic text, partition integer, "offset" bigint, reason text, rule text
    )
    where d.original_topic = r.topic
      and d.original_partition = r.partition
      and d.original_offset = r."offset"
      and d.reason = r.reason
      and coalesce(d.rule, '') = r.rule
    returning d.partition, d."offset"
)
delete from dead_letter_replays replays
using deleted
where replays.partition = deleted.partition and replays."offset" = deleted."offset"

-- name: expire_dead_letters
update dead_letters d
set expired_at = to_timestamp(r.expired_at_ms / 1000.0)
from json_to_recordset(%(rows)s::json) as r (
    partition integer, "offset" bigint, expired_at_ms bigint
)
where d.partition = r.partition and d."offset" = r."offset"

-- name: pending_dead_letters
select partition, "offset", event_id, request_id, original_topic, original_partition,
       original_offset, reason, message, stage, rule, dead_at, replayed_at, expired_at
from dead_letters d
where replayed_at is null
  and expired_at is null
  and (partition, "offset") > (%(partition)s::integer, %(offset)s::bigint)
  and not is_copy(d)
  and not was_processed(d)
order by partition, "offset"
limit %(limit)s

-- name: upsert_dead_letter_replays
with markers as (
    select r.partition, r."offset", max(to_timestamp(r.replayed_at_ms / 1000.0)) as replayed_at
    from json_to_recordset(%(rows)s::json) as r (
        partition integer, "offset" bigint, replayed_at_ms bigint
    )
    group by r.partition, r."offset"
),
kept as (
    insert into dead_letter_replays (partition, "offset", replayed_at)
    select partition, "offset", replayed_at from markers
    on conflict (partition, "offset") do update set
        replayed_at = greatest(dead_letter_replays.replayed_at, excluded.replayed_at)
    returning partition, "offset", replayed_at
)
update dead_letters d
set replayed_at = kept.replayed_at
from kept
where d.partition = kept.partition and d."offset" = kept."offset"

-- name: upsert_dead_letters
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

-- name: replay_matched
select count(*) as matched
from webhook_outcomes
where {selected}

-- name: replay_page
-- Oldest first, so that deliveries that wait for a connection meet it in the original order.
select event_id, partition, "offset", position, status, received_at
from webhook_outcomes
where (received_at, event_id) > (%(received_at)s::timestamptz, %(event_id)s)
  and {selected}
order by received_at, event_id
limit %(limit)s

-- name: replay_selected
-- Deliveries of a replay; shared by the count and the pages.
received_at >= %(since)s::timestamptz
  and received_at < %(until)s::timestamptz
  and (%(ids)s::text[] is null or event_id = any(%(ids)s::text[]))
  and (%(source)s::text is null or source = %(source)s)
  and (%(type)s::text is null or type = %(type)s)
  -- A delivery that died before its user connected has no user, but the subject of a connection.
  and (
      %(user_id)s::text is null
      or user_id = %(user_id)s
      or (status = 'dead' and user_id is null and subject = any(%(subjects)s::text[]))
  )
  and (%(partition)s::integer is null or partition = %(partition)s)
  and "offset" between %(from_offset)s::bigint and %(to_offset)s::bigint

-- name: user_with_digest
-- Users with rows first: others are found by reading one index entry per user.
with recursive named (user_id) as (
    (select user_id from webhook_outcomes where user_id is not null order by user_id limit 1)
    union all
    select (
        select o.user_id from webhook_outcomes o
        where o.user_id > named.user_id
        order by o.user_id
        limit 1
    )
    from named
    where named.user_id is not null
)
select user_id from users
where encode(sha256(convert_to(user_id, 'UTF8')), 'hex') = %(user_sha256)s
union all
select user_id from named
where encode(sha256(convert_to(user_id, 'UTF8')), 'hex') = %(user_sha256)s
limit 1
