select event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
       partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position
from webhook_outcomes
where user_id = %(user_id)s
order by received_at desc
limit %(limit)s
