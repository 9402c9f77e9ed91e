update dead_letters d
set expired_at = to_timestamp(r.expired_at_ms / 1000.0)
from json_to_recordset(%(rows)s::json) as r (
    partition integer, "offset" bigint, expired_at_ms bigint
)
where d.partition = r.partition and d."offset" = r."offset"
