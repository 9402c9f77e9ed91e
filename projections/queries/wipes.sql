-- Wipes of users.

-- name: upsert_wipes
-- Records that could not be applied are searched for the names as plain text, because they have no
-- other structure.
with wiped as (
    select * from json_to_recordset(%(rows)s::json) as r (
        user_sha256 text, partition integer, wipe_id text, names json, found jsonb,
        ordered_at_ms bigint, done_at_ms bigint
    )
),
unread as (
    delete from projection_errors e
    using wiped, json_array_elements_text(wiped.names) as name
    where position(convert_to(name, 'UTF8') in e.value) > 0
),
-- Names are quoted in keys, which are JSON, preceded by their length in rows of owners, which are
-- Avro, and between commas in rows of Postgres, which are text. So longer names do not match.
named as (
    select
        name, convert_to(to_json(name)::text, 'UTF8') as quoted,
        convert_to(',' || trim('()' from row(name)::text) || ',', 'UTF8') as separated,
        case
            when bytes < 64 then set_byte('\x00', 0, 2 * bytes)
            else set_byte(set_byte('\x0000', 0, 2 * bytes & 127 | 128), 1, 2 * bytes >> 7)
        end || convert_to(name, 'UTF8') as measured
    from wiped, json_array_elements_text(wiped.names) as name,
        octet_length(convert_to(name, 'UTF8')) as bytes
),
-- Also rows and examples of rebuilds.
rebuilt as (
    delete from rebuild_rows r
    using named
    where position(quoted in r.key) > 0
       or position(measured in r.before) > 0
       or position(measured in r.after) > 0
       or position(separated in r.before) > 0
       or position(separated in r.after) > 0
),
shown as (
    update rebuilds r
    set examples = (
        select coalesce(jsonb_agg(example), '[]')
        from jsonb_array_elements(r.examples) as example
        where not exists (
            select from named
            where jsonb_path_exists(example, '$.** ? (@ == $name)', jsonb_build_object('name', name))
        )
    )
    where exists (
        select from named
        where jsonb_path_exists(r.examples, '$.** ? (@ == $name)', jsonb_build_object('name', name))
    )
)
insert into wipes (user_sha256, partition, wipe_id, found, ordered_at, done_at)
select
    user_sha256, partition, wipe_id, found, to_timestamp(ordered_at_ms / 1000.0),
    case when done_at_ms > 0 then to_timestamp(done_at_ms / 1000.0) end
from wiped
on conflict (user_sha256, partition) do update set
    wipe_id = excluded.wipe_id,
    found = excluded.found,
    ordered_at = excluded.ordered_at,
    done_at = excluded.done_at

-- name: wipe
select partition, found, done_at
from wipes
where user_sha256 = %(user_sha256)s and wipe_id = %(wipe_id)s
order by partition

-- name: wipe_of_instances
-- If no worker has ever claimed a partition, there are no instances.
select
    exists (select from workflow_owner) as has_workers,
    (
        select i.output::text from workflow_instance i
        where i.workflow_name = %(workflow_name)s and i.instance_id = %(instance_id)s
    ) as output

-- name: wiped_partitions
select count(*) as done
from wipes
where user_sha256 = %(user_sha256)s
  and done_at is not null
  and ordered_at >= to_timestamp(%(ordered_at_ms)s::bigint / 1000.0)

-- name: wipes_under_way
-- Wipes whose rows may not all be removed yet.
select count(*) as number
from wipes
where done_at is null

-- name: wipes_known
select count(*) as number, max(ordered_at) as latest
from wipes
