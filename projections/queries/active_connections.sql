-- By a digest: whoever goes through them remembers how far it is without naming anybody.
select terra_user_id
from terra_connections
where active and md5(terra_user_id) > %(after)s
order by md5(terra_user_id)
limit %(limit)s
