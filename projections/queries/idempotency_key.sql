select state, request_hash, response_run_id, status_code, body
from idempotency
where project_id = %(project_id)s
  and idempotency_key = %(idempotency_key)s
  and endpoint = %(endpoint)s
