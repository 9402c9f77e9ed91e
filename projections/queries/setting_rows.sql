-- Deliveries that may have set a row of a user or a subject: the newest that write to its table.
select event_id, source, type, user_id, partition, "offset"
from webhook_outcomes
where {of} = %(of)s
  and (source, type) in (select * from unnest(%(sources)s::text[], %(types)s::text[]))
order by received_at desc
limit %(limit)s
