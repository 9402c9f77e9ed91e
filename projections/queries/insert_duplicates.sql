insert into duplicates (
    request_id, event_id, partition, "offset", first_offset, received_at, at
)
select
    r.request_id, r.event_id, r.partition, r."offset", r.first_offset,
    to_timestamp(r.received_at_ms / 1000), to_timestamp(r.at_ms / 1000)
from json_to_recordset(%(rows)s::json) as r (
    request_id text, event_id text, partition integer, "offset" bigint, first_offset bigint,
    received_at_ms double precision, at_ms double precision
)
on conflict (request_id) do nothing
