select attname, format_type(atttypid, atttypmod), col_description(attrelid, attnum)
from pg_attribute
where attrelid = (
    select oid from pg_class
    where relname = %(name)s and relnamespace = to_regnamespace('headwater')
)
  and attnum > 0
  and not attisdropped
order by attnum
