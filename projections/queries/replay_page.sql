-- The oldest first, so that what waits for a connection meets it as it did.
select event_id, partition, "offset", position, status, received_at
from webhook_outcomes
where (received_at, event_id) > (%(received_at)s::timestamptz, %(event_id)s)
  and {selected}
order by received_at, event_id
limit %(limit)s
