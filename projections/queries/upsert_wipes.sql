-- What nobody could apply is looked through for the names as they are: it has no other form.
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
