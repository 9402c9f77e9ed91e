-- The rebuild that has made a schema.
select obj_description(oid, 'pg_namespace')
from pg_namespace
where nspname = %(schema)s
