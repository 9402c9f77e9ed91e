-- Least recently examined first, so that repeated calls make progress.
select event_id, partition, "offset", position
from webhook_outcomes
where status = 'parked'
  and (%(subjects)s::text[] is null or subject = any(%(subjects)s))
order by at, event_id
limit %(limit)s
