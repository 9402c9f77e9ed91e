select count(*) filter (where before is null), count(*) filter (where after is null),
       count(*) filter (where before is not null and after is not null)
from rebuild_rows
where rebuild = %(id)s
