select attname
from pg_index i
cross join unnest(i.indkey) with ordinality as k (attnum, ordinal)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indisprimary
  and i.indrelid = (
      select oid from pg_class
      where relname = %(name)s and relnamespace = to_regnamespace('headwater')
  )
order by k.ordinal
