-- Returns no row if the key exists and is neither expired nor free: of concurrent requests, one
-- reserves it. Some other expired keys are deleted; rows locked by another session are skipped.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms
), swept as (
    delete from idempotency
    where ctid = any(array(
        select ctid
        from idempotency
        where created_at <= (select now_ms from clock) - %(remembered_ms)s
          and (project_id, idempotency_key, endpoint)
              <> (%(project_id)s, %(idempotency_key)s, %(endpoint)s)
        order by created_at
        limit %(swept)s
        for update skip locked
    ))
)
insert into idempotency as i (
    project_id, idempotency_key, endpoint, status_code, body, created_at, state, request_hash,
    response_run_id
)
select
    %(project_id)s, %(idempotency_key)s, %(endpoint)s, %(status_code)s, %(body)s, clock.now_ms,
    %(state)s, %(request_hash)s, %(response_run_id)s
from clock
on conflict (project_id, idempotency_key, endpoint) do update set
    status_code = excluded.status_code,
    body = excluded.body,
    created_at = excluded.created_at,
    state = excluded.state,
    request_hash = excluded.request_hash,
    response_run_id = excluded.response_run_id
where i.created_at <= excluded.created_at - %(remembered_ms)s
   or (i.state = 'refused' and i.request_hash <> excluded.request_hash)
returning state, request_hash, response_run_id, status_code, body
