-- Positions, sessions and errors of the projector.

-- name: applied_offsets
select topic, partition, next_offset, leader_epoch
from projection_offsets
where projection = %(projection)s and next_offset > 0
order by topic, partition

-- name: lock_offsets
-- Ordered, so that two projectors that lock the same rows wait for each other instead of
-- deadlocking.
select o.topic, o.partition, o.next_offset
from projection_offsets o
join unnest(%(topics)s::text[], %(partitions)s::integer[]) as named (topic, partition)
  on o.topic = named.topic and o.partition = named.partition
where o.projection = %(projection)s
order by o.topic, o.partition
for update of o

-- name: next_offsets
select partition, next_offset
from projection_offsets
where projection = %(projection)s and topic = %(topic)s

-- name: register_offsets
insert into projection_offsets (projection, topic, partition, next_offset)
select %(projection)s, named.topic, named.partition, 0
from unnest(%(topics)s::text[], %(partitions)s::integer[]) as named (topic, partition)
order by named.topic, named.partition
on conflict do nothing

-- name: write_offsets
update projection_offsets o
set next_offset = written.next_offset,
    epoch = written.epoch,
    cause = written.cause,
    leader_epoch = written.leader_epoch,
    applied_at = to_timestamp(%(now_ms)s / 1000.0)
from unnest(
    %(topics)s::text[], %(partitions)s::integer[], %(next_offsets)s::bigint[],
    %(epochs)s::bigint[], %(causes)s::bigint[], %(leader_epochs)s::integer[]
) as written (topic, partition, next_offset, epoch, cause, leader_epoch)
where o.projection = %(projection)s
  and o.topic = written.topic
  and o.partition = written.partition

-- name: lock_projection
-- Projectors wait until this transaction ends.
select topic, partition, next_offset
from projection_offsets
where projection = %(projection)s and topic = any(%(topics)s::text[])
order by topic, partition
for update

-- name: projector_session
-- A projector that freezes in a transaction must not hold its offsets or the horizon of sync.
-- Statements are planned each time, because a cached plan for a small table would remain as it
-- grows. Rows lost in a crash of the server are read from Kafka again, except where clients already
-- got a response: there a crash must not lose anything.
select set_config('idle_in_transaction_session_timeout', '20s', false),
       set_config('statement_timeout', %(statement_timeout)s, false),
       set_config('plan_cache_mode', 'force_custom_plan', false),
       set_config('synchronous_commit', %(synchronous_commit)s, false),
       set_config('timezone', 'UTC', false)

-- name: reader_session
select set_config('statement_timeout', %(statement_timeout)s, false),
       set_config('default_transaction_read_only', 'on', false),
       set_config('timezone', 'UTC', false)

-- name: read_positions
select o.topic, o.partition, o.next_offset, o.epoch, o.cause, o.leader_epoch
from projection_offsets o
join unnest(%(topics)s::text[], %(partitions)s::integer[]) as named (topic, partition)
  on o.topic = named.topic and o.partition = named.partition
where o.projection = %(projection)s

-- name: projection_positions
select projection, topic, partition, next_offset, applied_at
from projection_offsets
order by projection, topic, partition

-- name: projection_positions_of
select topic, partition, next_offset
from projection_offsets
where projection = %(projection)s and topic = any(%(topics)s::text[])

-- name: projection_errors
select topic, partition, "offset", error, value, at
from projection_errors
order by at desc, topic, partition, "offset"
limit %(limit)s

-- name: insert_projection_errors
insert into projection_errors (topic, partition, "offset", error, value, at)
select
    r.topic, r.partition, r."offset", r.error, decode(r.value, 'base64'),
    to_timestamp(%(now_ms)s / 1000.0)
from json_to_recordset(%(rows)s::json) as r (
    topic text, partition integer, "offset" bigint, error text, value text
)
on conflict (topic, partition, "offset") do update set error = excluded.error, at = excluded.at

-- name: accept_loss
-- Records the loss permanently. An active projector holds a lock on the row and is further ahead.
with moved as (
    update projection_offsets
    set next_offset = %(end)s, epoch = %(epoch)s, cause = %(cause)s,
        leader_epoch = %(leader_epoch)s,
        applied_at = to_timestamp(%(now_ms)s / 1000.0)
    where projection = %(projection)s and topic = %(topic)s and partition = %(partition)s
      and next_offset = %(applied)s
    returning topic, partition
)
insert into projection_errors (topic, partition, "offset", error, value, at)
select topic, partition, %(end)s, %(error)s, null, to_timestamp(%(now_ms)s / 1000.0)
from moved
on conflict (topic, partition, "offset") do update set error = excluded.error, at = excluded.at

-- name: bind_topic_prefix
-- The rows of a schema come from the topics of one prefix. The log has all growths of these topics.
update projection_identity
set
    topic_prefix = coalesce(topic_prefix, %(prefix)s),
    growths = case
        when coalesce(topic_prefix, %(prefix)s) = %(prefix)s
            and jsonb_array_length(growths) < jsonb_array_length(%(growths)s::jsonb)
            then %(growths)s::jsonb
        else growths
    end
returning topic_prefix

-- name: bound_topic_prefix
-- Null before the first projector has run; then not the prefix of the query.
select topic_prefix from projection_identity

-- name: begin_epoch
-- The first statement of a session, so that all its writes are later.
insert into sync_epochs (began_at) values (to_timestamp(%(now_ms)s / 1000.0))
