-- A request that was appended twice has a delivery and a copy: the delivery comes first.
select request_id, event_id, user_id, level, hops, started_at, ended_at
from traces
where request_id = %(request_id)s
order by hops @> '[{"stage": "duplicate"}]', started_at desc
limit %(limit)s
