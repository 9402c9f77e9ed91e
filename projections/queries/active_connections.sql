-- Ordered by a digest, so that the position of an iteration names no user.
select terra_user_id
from terra_connections
where active and md5(terra_user_id) > %(after)s
order by md5(terra_user_id)
limit %(limit)s
