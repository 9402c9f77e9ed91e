-- Idempotency keys.

-- name: complete_idempotency_key
-- The first response is kept. An expired key may belong to another run by now.
update idempotency
set state = 'completed',
    status_code = case when state = 'completed' then status_code else %(status_code)s end,
    body = case when state = 'completed' then body else %(body)s end
where project_id = %(project_id)s
  and idempotency_key = %(idempotency_key)s
  and endpoint = %(endpoint)s
  and response_run_id = %(response_run_id)s
returning state, request_hash, response_run_id, status_code, body

-- name: idempotency_key
select state, request_hash, response_run_id, status_code, body
from idempotency
where project_id = %(project_id)s
  and idempotency_key = %(idempotency_key)s
  and endpoint = %(endpoint)s

-- name: refuse_idempotency_key
-- A key that another request has completed is kept.
update idempotency
set state = 'refused'
where project_id = %(project_id)s
  and idempotency_key = %(idempotency_key)s
  and endpoint = %(endpoint)s
  and response_run_id = %(response_run_id)s
  and state = 'in_progress'

-- name: reserve_idempotency_key
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

-- name: sweep_idempotency_keys
-- Deletes the oldest expired keys and returns how many. Rows locked by another session are skipped.
with swept as (
    delete from idempotency
    where ctid = any(array(
        select ctid
        from idempotency
        where created_at
              <= (extract(epoch from clock_timestamp()) * 1000)::bigint - %(remembered_ms)s
        order by created_at
        limit %(swept)s
        for update skip locked
    ))
    returning 1
)
select count(*) as keys from swept
