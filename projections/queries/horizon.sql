-- Every transaction before the horizon has ended: what it wrote is there, or never will be.
select id::text as database, pg_snapshot_xmin(pg_current_snapshot())::text as horizon
from projection_identity
