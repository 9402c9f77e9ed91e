-- A key that another request has completed is kept.
update idempotency
set state = 'refused'
where project_id = %(project_id)s
  and idempotency_key = %(idempotency_key)s
  and endpoint = %(endpoint)s
  and response_run_id = %(response_run_id)s
  and state = 'in_progress'
