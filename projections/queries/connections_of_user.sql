select terra_user_id, provider, active, reference_id, scopes, deactivated_at
from terra_connections
where user_id = %(user_id)s
order by terra_user_id
