select terra_user_id
from terra_connections
where active and md5(terra_user_id) = any(%(digests)s)
