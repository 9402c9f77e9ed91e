select partition, "offset", event_id, request_id, original_topic, original_partition,
       original_offset, reason, message, stage, rule, dead_at, replayed_at, expired_at
from dead_letters d
where event_id = %(event_id)s
  and not is_copy(d)
order by dead_at
limit 100
