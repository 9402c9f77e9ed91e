insert into duplicates (
    request_id, event_id, partition, "offset", first_offset, received_at, at
)
select request_id, event_id, partition, "offset", first_offset, received_at, at
from unnest(%(rows)s::pg_temp.duplicates_row[])
on conflict (request_id) do nothing
