select event_id, request_id, source, type, subject, user_id, status, reason, rows, rejected,
       partition, "offset", received_at, admitted_at, parked_at, released_at, at, stage, position, replay
from webhook_outcomes
where event_id = %(event_id)s
