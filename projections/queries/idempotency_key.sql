select state, request_hash, response_run_id, status_code, body, created_at
from idempotency
where project_id = %(project_id)s
  and idempotency_key = %(idempotency_key)s
  and endpoint = %(endpoint)s
