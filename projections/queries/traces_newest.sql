select request_id, event_id, user_id, level, hops, started_at, ended_at
from traces
where {condition}
order by started_at desc, request_id
limit %(limit)s
