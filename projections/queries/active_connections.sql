select terra_user_id
from terra_connections
where active and terra_user_id > %(after)s
order by terra_user_id
limit %(limit)s
