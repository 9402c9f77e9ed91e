insert into request_answers (
    request_id, source, code, reason, detail, event_id, size, peer, left_out, at
)
select request_id, source, code, reason, detail, event_id, size, peer, left_out, at
from unnest(%(rows)s::pg_temp.request_answers_row[])
on conflict (request_id) do nothing
