select id
from rebuilds
where state = any(%(states)s::text[])
order by created_at
