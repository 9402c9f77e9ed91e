select event_id, source, type, user_id, partition, "offset"
from webhook_outcomes
where event_id = any(%(event_ids)s::text[])
