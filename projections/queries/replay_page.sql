-- Oldest first, so that deliveries that wait for a connection meet it in the original order.
select event_id, partition, "offset", position, status, received_at
from webhook_outcomes
where (received_at, event_id) > (%(received_at)s::timestamptz, %(event_id)s)
  and {selected}
order by received_at, event_id
limit %(limit)s
