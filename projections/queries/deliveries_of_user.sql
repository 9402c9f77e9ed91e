select
    (select count(*) from webhook_outcomes where user_id = %(user_id)s) as raw_events,
    (
        select count(*)
        from dead_letters d
        join webhook_outcomes o on o.event_id = d.event_id
        where o.user_id = %(user_id)s and not is_copy(d)
    ) as dead_letters
