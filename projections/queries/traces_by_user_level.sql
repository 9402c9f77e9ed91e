-- The level is filled in: with a parameter Postgres could not tell that the index of it applies.
select request_id, event_id, user_id, level, hops, started_at, ended_at
from traces
where user_id = %(user_id)s and level = {level}
order by started_at desc, request_id
limit %(limit)s
