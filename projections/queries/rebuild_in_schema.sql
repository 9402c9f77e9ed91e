-- The rebuild that created a schema.
select obj_description(oid, 'pg_namespace')
from pg_namespace
where nspname = %(schema)s
