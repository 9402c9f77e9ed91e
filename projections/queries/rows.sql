-- Rows of all projection tables: upserts, deletions, sync and export.

-- name: upsert_rows
insert into {table} ({columns}, column_sources, updated_at)
select {values}, r.column_sources, to_timestamp(%(now_ms)s / 1000.0)
from {rows} as r
on conflict ({key}) do update set
    {assignments},
    column_sources = excluded.column_sources,
    changed_in = excluded.changed_in,
    updated_at = excluded.updated_at

-- name: delete_rows
delete from {table} t
using json_to_recordset(%(rows)s::json) as r ({definitions})
where {match}

-- name: delete_synced_rows
-- Deletions of missing rows are stored, too: a reader may have a row that Postgres has lost.
with deleted as (
    delete from {table} t
    using {rows} as r
    where {match}
    returning {returned}, t.user_id
)
insert into deletions (table_name, key, user_id, deleted_at)
select {table_name}, jsonb_build_object({pairs}), {user_id}, to_timestamp(%(now_ms)s / 1000.0)
from {rows} as r
left join deleted t on {match}
on conflict (table_name, key) do update set
    user_id = coalesce(excluded.user_id, deletions.user_id),
    deleted_in = excluded.deleted_in,
    deleted_at = excluded.deleted_at

-- name: delete_wiped_rows
-- Readers receive the digest of a wiped user instead of the name: they delete the rows of the
-- digest and receive the user's current rows again. This also covers earlier deletions of the
-- user's rows that a reader has not received yet.
with deleted as (
    delete from {table} t
    using json_to_recordset(%(rows)s::json) as r ({definitions}, wiped_user text)
    where {match}
    returning t.user_id
),
wiped_user_ids as (
    select user_id from deleted where user_id is not null
    union
    select wiped_user
    from json_to_recordset(%(rows)s::json) as r (wiped_user text)
    where wiped_user is not null
),
replaced_deletions as (
    delete from deletions d
    using wiped_user_ids
    where d.user_id = wiped_user_ids.user_id and d.table_name = {table_name}
),
sent_again as (
    update {table} t
    set changed_in = pg_current_xact_id()
    from wiped_user_ids
    where t.user_id = wiped_user_ids.user_id
      and not exists (
          select from json_to_recordset(%(rows)s::json) as r ({definitions}) where {match}
      )
)
insert into deletions (table_name, key, user_id, deleted_at)
select
    {table_name}, jsonb_build_object('user_sha256', digest), digest,
    to_timestamp(%(now_ms)s / 1000.0)
from (
    select encode(sha256(convert_to(user_id, 'UTF8')), 'hex') as digest from wiped_user_ids
) as named
on conflict (table_name, key) do update set
    deleted_in = excluded.deleted_in,
    deleted_at = excluded.deleted_at

-- name: row_from_text
select (%(row)s::{served}).*

-- name: row_of_key
select {columns}, json_build_object({pairs}) as key, column_sources
from {table} t
where {match}

-- name: rows_of_delivery
-- Scans all rows of the user, which are thousands at most.
select
    {table_name} as "table",
    json_build_object({pairs}) as key,
    array(
        select set_by.key
        from json_each_text(t.column_sources -> 'columns') as set_by
        where set_by.value::integer = one.number - 1
    ) as columns
from {table} t,
    json_array_elements(t.column_sources -> 'deliveries') with ordinality as one (delivery, number)
where ({owned})
  and one.delivery ->> 'event_id' = %(event_id)s
limit 1000

-- name: count_of_user
select count(*) as rows from {table} where user_id = %(user_id)s

-- name: changes
-- The alias differs from the column name, because "order by" would use the alias: as text, 9 sorts
-- after 10.
select {columns}, updated_at, changed_in::text as written_in
from {table}
where {condition}
  and (changed_in, {key}) > (%(changed_in)s::xid8, {after})
  and changed_in < %(horizon)s::xid8
  and updated_at >= %(since)s::timestamptz
order by changed_in, {key}
limit %(limit)s

-- name: deletions
select table_name, key, deleted_in::text as written_in
from deletions
where (deleted_in, table_name, key) > (%(changed_in)s::xid8, %(key_0)s, %(key_1)s::jsonb)
  and deleted_in < %(horizon)s::xid8
  and deleted_at >= %(since)s::timestamptz
  and (
      %(user_id)s::text is null
      or user_id in (%(user_id)s, encode(sha256(convert_to(%(user_id)s::text, 'UTF8')), 'hex'))
  )
  and (%(table)s::text is null or table_name = %(table)s)
order by deleted_in, table_name, key
limit %(limit)s

-- name: horizon
-- Every transaction before the horizon has ended: its rows are visible or will never exist. Rows
-- written since a later epoch may reuse numbers of lost transactions that a cursor has seen.
select
    i.id::text as database,
    pg_snapshot_xmin(pg_current_snapshot())::text as horizon,
    i.deletions_pruned::text as deletions_pruned,
    coalesce((select id::text from sync_epochs order by number desc limit 1), '') as epoch,
    %(epoch)s = '' or c.id is not null as epoch_known,
    (
        select min(began_in)::text
        from sync_epochs
        where number > coalesce(c.number, 0)
    ) as next_epoch_began
from projection_identity i
left join sync_epochs c on c.id::text = %(epoch)s

-- name: sync_progress
-- The projector's progress. What it has written before this was read is visible to a page of sync
-- once the horizon is at least `next_transaction`.
select
    coalesce(sum(next_offset), 0)::bigint as offsets,
    pg_snapshot_xmin(pg_current_snapshot())::text as horizon,
    pg_snapshot_xmax(pg_current_snapshot())::text as next_transaction
from projection_offsets
where topic = any(%(topics)s)

-- name: prune_sync
-- Rows that no valid cursor needs anymore.
with forgotten as (
    delete from sync_epochs e
    using sync_epochs next
    where next.number > e.number and next.began_at < to_timestamp(%(before_ms)s / 1000.0)
), pruned as (
    delete from deletions
    where deleted_at < to_timestamp(%(before_ms)s / 1000.0)
    returning deleted_in
)
update projection_identity
set deletions_pruned = greatest(deletions_pruned, (select max(deleted_in) from pruned))
where exists (select from pruned)

-- name: export_columns
select attname, format_type(atttypid, atttypmod)
from pg_attribute
where attrelid = (
    select oid from pg_class
    where relname = %(name)s
      and relnamespace = to_regnamespace(coalesce(current_setting('headwater.schema', true), 'headwater'))
      and relkind in ('r', 'p', 'v', 'm')
      and has_table_privilege(oid, 'select')
)
  and attnum > 0
  and not attisdropped
order by attnum

-- name: export_key
select attname
from pg_index i
cross join unnest(i.indkey) with ordinality as k (attnum, ordinal)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indisprimary
  and i.indrelid = (
      select oid from pg_class
      where relname = %(name)s
      and relnamespace = to_regnamespace(coalesce(current_setting('headwater.schema', true), 'headwater'))
  )
order by k.ordinal

-- name: export_session
select set_config('default_transaction_read_only', 'on', false),
       set_config('transaction_read_only', 'on', false),
       set_config('timezone', 'UTC', false),
       set_config('cursor_tuple_fraction', '1.0', false)

-- name: export_tables
select relname
from pg_class
where relnamespace = to_regnamespace(coalesce(current_setting('headwater.schema', true), 'headwater'))
  and relkind in ('r', 'p', 'v', 'm')
  and has_table_privilege(oid, 'select')
order by relname
