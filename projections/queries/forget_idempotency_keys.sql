-- Who finds a row locked leaves it to whoever holds it.
delete from idempotency
where ctid = any(array(
    select ctid
    from idempotency
    where created_at <= %(forgotten_ms)s
    order by created_at
    limit %(limit)s
    for update skip locked
))
