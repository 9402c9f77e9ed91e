select received_at, request_id, event_id, source, type, subject, user_id, status, reason, rows, rejected
from deliveries
where (received_at, request_id) < (%(received_at)s::timestamptz, %(request_id)s)
  and received_at >= %(since)s::timestamptz
  and received_at < %(until)s::timestamptz
  and (%(source)s::text is null or source = %(source)s)
  and (%(type)s::text is null or type = %(type)s)
  and (%(user_id)s::text is null or user_id = %(user_id)s)
  and (%(status)s::text is null or status = %(status)s)
  and (%(reason)s::text is null or reason = %(reason)s)
order by received_at desc, request_id desc
limit %(limit)s
