select partition, found, done_at
from wipes
where user_sha256 = %(user_sha256)s and wipe_id = %(wipe_id)s
order by partition
