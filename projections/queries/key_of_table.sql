select a.attname
from pg_index i
cross join unnest(i.indkey::smallint[]) with ordinality as part (number, ordinal)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = part.number
where i.indrelid = %(table)s::regclass and i.indisprimary
order by part.ordinal
