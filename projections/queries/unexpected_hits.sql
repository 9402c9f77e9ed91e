select coalesce(sum(hits), 0)::bigint as lifetime,
       coalesce(sum(hits) filter (
           where minute >= date_trunc('minute', %(at)s::timestamptz - interval '15 minutes')
       ), 0)::bigint as last_15m,
       max(last_at) as last_at
from unexpected_hits
where project_id = %(project_id)s
