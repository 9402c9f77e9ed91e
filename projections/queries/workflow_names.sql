-- Those of apps, without the workflows that come with Headwater.
select distinct name collate "C" as name
from workflow_owner cross join lateral unnest(workflows) as named (name)
where not starts_with(name, 'headwater-')
  and name not in ('terra-backfill', 'terra-import', 'terra-lab', 'terra-reconcile')
order by name
