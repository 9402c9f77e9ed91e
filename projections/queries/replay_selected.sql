-- Deliveries of a replay; shared by the count and the pages.
received_at >= %(since)s::timestamptz
  and received_at < %(until)s::timestamptz
  and (%(ids)s::text[] is null or event_id = any(%(ids)s::text[]))
  and (%(source)s::text is null or source = %(source)s)
  and (%(type)s::text is null or type = %(type)s)
  and (%(user_id)s::text is null or user_id = %(user_id)s)
  and (%(partition)s::integer is null or partition = %(partition)s)
  and "offset" between %(from_offset)s::bigint and %(to_offset)s::bigint
