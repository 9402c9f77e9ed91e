-- The oldest first, so that what waits for a connection meets it as it did.
select event_id, partition, "offset", position, status, received_at
from webhook_outcomes
where (received_at, event_id) > (%(received_at)s::timestamptz, %(event_id)s)
  and received_at >= %(since)s::timestamptz
  and received_at < %(until)s::timestamptz
  and (%(ids)s::text[] is null or event_id = any(%(ids)s::text[]))
  and (%(source)s::text is null or source = %(source)s)
  and (%(type)s::text is null or type = %(type)s)
  and (%(user_id)s::text is null or user_id = %(user_id)s)
  and (%(partition)s::integer is null or partition = %(partition)s)
  and "offset" between %(from_offset)s::bigint and %(to_offset)s::bigint
order by received_at, event_id
limit %(limit)s
