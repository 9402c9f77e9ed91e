select convert_from(key, 'UTF8')::json ->> 0, convert_from(before, 'UTF8'), convert_from(after, 'UTF8')
from rebuild_rows
where rebuild = %(id)s and {which}
order by number
limit %(limit)s
