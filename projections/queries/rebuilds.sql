-- Rebuilds and verifications of projections.

-- name: request_rebuild_state
-- The unique index rejects a second active rebuild of the projection.
update rebuilds r
set state = %(state)s, sent = -1, updated_at = now()
where id = %(id)s
  and state = any(%(after)s::text[])
  and not dry_run
  and not exists (
      select from rebuilds other
      where other.projection = r.projection
        and other.state in ('building', 'switching', 'switching_back')
  )
returning id, projection, version, dry_run, state, applied, total, added, removed, changed, examples, ends,
          sent, error, created_at

-- name: begin_rebuild
with outdated as (
    delete from rebuilds
    where version is null
      and projection = %(projection)s
      and state = 'verified'
      and created_at < now() - interval '30 days'
)
insert into rebuilds (id, projection, version, dry_run, state)
select
    %(id)s, %(projection)s,
    case when not %(verify)s then coalesce(max(version), 1) + 1 end,
    %(dry_run)s, 'building'
from rebuilds
where projection = %(projection)s
  and state = 'switched'
on conflict do nothing
returning id, projection, version, dry_run, state, applied, total, added, removed, changed, examples, ends,
          sent, error, created_at

-- name: delete_rebuilt_instances
-- Rows and examples of rebuilds about deleted instances.
with deleted as (
    select * from json_to_recordset(%(rows)s::json) as r (workflow_name text, instance_id text)
),
shown as (
    update rebuilds r
    set examples = (
        select coalesce(jsonb_agg(example), '[]')
        from jsonb_array_elements(r.examples) as example
        where not exists (
            select from deleted d
            where example -> 'key' ->> 'workflow_name' = d.workflow_name
              and example -> 'key' ->> 'instance_id' = d.instance_id
        )
    )
    where r.projection = 'workflows' and r.examples <> '[]'
)
delete from rebuild_rows r
using deleted d, rebuilds b
where b.id = r.rebuild
  and b.projection = 'workflows'
  and convert_from(r.key, 'UTF8')::json ->> 1 = d.workflow_name
  and convert_from(r.key, 'UTF8')::json ->> 2 = d.instance_id

-- name: forget_refused_difference
delete from rebuild_rows
where rebuild = %(id)s
  and partition is null
  and after is null
  and key = convert_to(json_build_array(%(table)s::text, {key})::text, 'UTF8')

-- name: forget_rebuild_row
delete from rebuild_rows
where rebuild = %(id)s and partition = %(partition)s and key = %(key)s

-- name: forget_rebuild_rows
delete from rebuild_rows
where rebuild = %(id)s

-- name: insert_rebuild_row
insert into rebuild_rows (rebuild, number, partition, key, before, after)
values (%(id)s, %(number)s, %(partition)s, %(key)s, %(before)s, %(after)s)

-- name: rebuilds_locked
-- The key of an advisory lock is in two columns.
select count(*) as number
from pg_locks
where locktype = 'advisory'
  and database = (select oid from pg_database where datname = current_database())
  and objsubid = 1
  and (classid::bigint << 32 | objid::bigint) = hashtextextended('headwater rebuilds ' || current_schema(), 6)

-- name: lock_rebuilds
-- One at a time in the whole system: there is one schema of rebuilt tables.
select pg_try_advisory_lock(hashtextextended('headwater rebuilds ' || current_schema(), 6))

-- name: next_rebuild_row
select coalesce(max(number) + 1, 0) from rebuild_rows where rebuild = %(id)s

-- name: put_rebuilt_rows
insert into {served}
select (rebuilt_row.n).*
from (
    select convert_from(r.{new}, 'UTF8')::{served} as n
    from rebuild_rows r
    where r.rebuild = %(id)s
      and convert_from(r.key, 'UTF8')::json ->> 0 = %(table)s
      and r.{new} is not null
      and (r.{old} is null or r.number in (select rebuilt_number from taken))
    offset 0
) rebuilt_row
on conflict do nothing

-- name: rebuild
select id, projection, version, dry_run, state, applied, total, added, removed, changed, examples, ends,
          sent, error, created_at
from rebuilds
where id = %(id)s

-- name: rebuild_compared
update rebuilds
set state = case
        when state <> 'building' then state
        when version is null then 'verified'
        else 'compared'
    end,
    added = %(added)s, removed = %(removed)s, changed = %(changed)s,
    sent = 0, examples = %(examples)s::jsonb, ends = %(ends)s::jsonb, updated_at = now()
where id = %(id)s

-- name: rebuild_counts
select count(*) filter (where before is null), count(*) filter (where after is null),
       count(*) filter (where before is not null and after is not null)
from rebuild_rows
where rebuild = %(id)s and partition is null

-- name: rebuild_differences
select
    convert_to(json_build_array(%(table)s::text, {key})::text, 'UTF8'),
    convert_to({before}, 'UTF8'),
    convert_to({after}, 'UTF8')
from {served} b
full join {rebuilt} a on {match}
where {differs}

-- name: rebuild_ended
update rebuilds
set state = %(state)s, error = %(error)s, updated_at = now()
where id = %(id)s

-- name: rebuild_examples
select convert_from(key, 'UTF8')::json ->> 0, convert_from(before, 'UTF8'), convert_from(after, 'UTF8')
from rebuild_rows
where rebuild = %(id)s and partition is null and {which}
order by number
limit %(limit)s

-- name: rebuild_in_schema
-- The rebuild that created a schema.
select obj_description(oid, 'pg_namespace')
from pg_namespace
where nspname = %(schema)s

-- name: rebuild_progress
update rebuilds
set applied = %(applied)s, total = %(total)s, updated_at = now()
where id = %(id)s

-- name: rebuild_rows
-- Rows for their owners.
select number, partition, key, before, after
from rebuild_rows
where rebuild = %(id)s
  and partition is not null
  and number >= %(number)s
order by number
limit %(limit)s

-- name: rebuild_sent
update rebuilds
set sent = %(sent)s, updated_at = now()
where id = %(id)s

-- name: rebuilds
select id, projection, version, dry_run, state, applied, total, added, removed, changed, examples, ends,
          sent, error, created_at
from rebuilds
order by created_at desc, id desc
limit %(limit)s

-- name: rebuilds_under_way
select id
from rebuilds
where state = any(%(states)s::text[])
order by created_at

-- name: rows_to_delete
(
    select t.*
    from (
        select convert_from(r.{old}, 'UTF8')::{served} as o, convert_from(r.{old}, 'UTF8') as text
        from rebuild_rows r
        where r.rebuild = %(id)s and r.partition is null and r.{new} is null
        offset 0
    ) removed
    join {served} t on {match}
    where {current} = removed.text
)

-- name: rows_to_write
-- A row that has changed since the comparison stays as it is. One that was missing then may have been
-- deleted since, and is still missing.
(
    select (written.n).*
    from (
        select convert_from(r.{new}, 'UTF8')::{served} as n, convert_from(r.{old}, 'UTF8') as text
        from rebuild_rows r
        where r.rebuild = %(id)s and r.partition is null and r.{new} is not null
        offset 0
    ) written
    left join {served} t on {match}
    where {current} is not distinct from written.text
      and (
          written.text is not null
          or not exists (
              select from {deletions} d
              where d.table_name = %(table)s
                and d.key = jsonb_build_object({pairs})
                and not pg_visible_in_snapshot(d.deleted_in, %(compared_at)s::pg_snapshot)
          )
      )
)

-- name: take_rebuilt_rows
-- A row that has changed since the comparison stays as it is.
create temporary table taken as
with kept as (
    select r.number as rebuilt_number, r.{old} as rebuilt, convert_from(r.{old}, 'UTF8')::{served} as o
    from rebuild_rows r
    where r.rebuild = %(id)s
      and convert_from(r.key, 'UTF8')::json ->> 0 = %(table)s
      and r.{old} is not null
    offset 0
),
deleted as (
    delete from {served} t
    using kept
    where {match}
      and convert_to(t::text, 'UTF8') = kept.rebuilt
    returning kept.rebuilt_number
)
select rebuilt_number from deleted
