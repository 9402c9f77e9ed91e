select request_id, event_id, user_id, level, hops, started_at, ended_at
from traces
where user_id = %(user_id)s and level = %(level)s
order by started_at desc nulls last, request_id
limit %(limit)s
