-- Those first that were looked at longest ago: who drains again, gets on.
select event_id, partition, "offset", position
from webhook_outcomes
where status = 'parked'
  and (%(subjects)s::text[] is null or subject = any(%(subjects)s))
order by at, event_id
limit %(limit)s
