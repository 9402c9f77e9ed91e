select terra_user_id, provider, active, reference_id, scopes, deactivated_at,
       -- The delivery that closes a connection has no reference.
       (select s.sent_at from value_source(column_sources, 'reference_id') as s) as connected_at
from terra_connections
where user_id = %(user_id)s
order by terra_user_id
