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
