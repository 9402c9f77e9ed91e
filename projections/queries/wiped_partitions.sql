select count(*) as done
from wipes
where user_sha256 = %(user_sha256)s
  and done_at is not null
  and ordered_at >= to_timestamp(%(ordered_at_ms)s::bigint / 1000.0)
