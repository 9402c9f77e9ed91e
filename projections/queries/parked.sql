select event_id, request_id, source, type, subject, reason, 'webhooks' as original_topic,
       partition as original_partition, "offset" as original_offset, parked_at, position
from webhook_outcomes
where status = 'parked'
  and (parked_at, partition, "offset")
    < (%(at)s::timestamptz, %(partition)s::integer, %(offset)s::bigint)
order by parked_at desc, partition desc, "offset" desc
limit %(limit)s
