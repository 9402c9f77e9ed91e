select event_id, request_id, source, type, subject, user_id, status, reason, rows,
       partition, "offset", received_at, at
from webhook_outcomes
where event_id = %(event_id)s
