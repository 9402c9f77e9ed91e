select partition, "offset", event_id, request_id, original_topic, original_partition,
       original_offset, reason, message, stage, rule, dead_at, replayed_at, expired_at
from dead_letters d
where replayed_at is null
  and expired_at is null
  and (partition, "offset") > (%(partition)s::integer, %(offset)s::bigint)
  and not is_copy(d)
order by partition, "offset"
limit %(limit)s
