-- OIDs of this session's row types.
select typname, oid::bigint
from pg_type
where typnamespace = pg_my_temp_schema() and typtype = 'c'
