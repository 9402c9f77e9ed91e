-- Those of apps: the workflows that come with Headwater have names that begin with its own.
select distinct name collate "C" as name
from workflow_owner cross join lateral unnest(workflows) as named (name)
where not starts_with(name, 'headwater-')
order by name
