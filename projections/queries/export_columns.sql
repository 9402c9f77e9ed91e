select attname, format_type(atttypid, atttypmod)
from pg_attribute
where attrelid = (
    select oid from pg_class
    where relname = %(name)s
      and relnamespace = to_regnamespace('headwater')
      and relkind in ('r', 'p', 'v', 'm')
      and has_table_privilege(oid, 'select')
)
  and attnum > 0
  and not attisdropped
order by attnum
