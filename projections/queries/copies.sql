select request_id, at from duplicates where event_id = %(event_id)s
union all
select request_id, at from request_answers where event_id = %(event_id)s
order by at
limit 100
