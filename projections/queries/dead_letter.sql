select partition, "offset", event_id, request_id, original_topic, original_partition,
       original_offset, reason, message, stage, rule, dead_at, replayed_at, expired_at, key, value, headers
from dead_letters
where partition = %(partition)s and "offset" = %(offset)s
