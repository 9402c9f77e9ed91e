select relname
from pg_class
where relnamespace = to_regnamespace('headwater')
  and relkind in ('r', 'p', 'v', 'm')
  and has_table_privilege(oid, 'select')
order by relname
