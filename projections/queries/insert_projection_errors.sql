insert into projection_errors (topic, partition, "offset", error, value, at)
select
    r.topic, r.partition, r."offset", r.error, decode(r.value, 'base64'),
    to_timestamp(%(now_ms)s / 1000.0)
from json_to_recordset(%(rows)s::json) as r (
    topic text, partition integer, "offset" bigint, error text, value text
)
on conflict (topic, partition, "offset") do update set error = excluded.error, at = excluded.at
