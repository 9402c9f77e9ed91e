-- The delivery with this id, or that of the request with this id that brought it or a copy of it.
select event_id from webhook_outcomes where event_id = %(id)s
union all
select event_id from webhook_outcomes where request_id = %(id)s
union all
select event_id from duplicates where request_id = %(id)s
union all
select event_id from request_answers where request_id = %(id)s and event_id <> ''
limit 1
