select request_id, source, code, reason, detail, size, peer, left_out, at
from request_answers
where request_id = %(request_id)s
