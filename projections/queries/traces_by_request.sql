-- One request can bring several deliveries: facts of Headwater's own.
select request_id, event_id, user_id, level, hops, started_at, ended_at
from traces
where request_id = %(request_id)s
order by started_at desc, event_id
limit %(limit)s
