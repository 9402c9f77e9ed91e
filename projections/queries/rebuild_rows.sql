select number, partition, key, before, after
from rebuild_rows
where rebuild = %(id)s
  and number >= %(number)s
order by number
limit %(limit)s
