select distinct name collate "C" as name
from workflow_owner cross join lateral unnest(workflows) as named (name)
order by name
