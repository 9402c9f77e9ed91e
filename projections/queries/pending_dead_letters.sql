select partition, "offset", event_id, request_id, original_topic, original_partition,
       original_offset, reason, message, stage, dead_at, replayed_at
from dead_letters
where replayed_at is null
  and (partition, "offset") > (%(partition)s::integer, %(offset)s::bigint)
order by partition, "offset"
limit %(limit)s
