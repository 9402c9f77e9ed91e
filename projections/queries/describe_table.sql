select case relkind when 'v' then 'view' else 'table' end, obj_description(oid)
from pg_class
where relname = %(name)s and relnamespace = to_regnamespace('headwater')
