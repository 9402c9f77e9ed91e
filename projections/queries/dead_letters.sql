select partition, "offset", event_id, request_id, original_topic, original_partition,
       original_offset, reason, message, stage, rule, dead_at, replayed_at, expired_at
from dead_letters d
where (dead_at, partition, "offset")
    < (%(at)s::timestamptz, %(partition)s::integer, %(offset)s::bigint)
  and not is_copy(d)
order by dead_at desc, partition desc, "offset" desc
limit %(limit)s
