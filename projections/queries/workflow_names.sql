-- Those of apps, without the workflows that come with Headwater, and graphs that are deployed.
select name
from (
    select distinct name collate "C" as name
    from workflow_owner cross join lateral unnest(workflows) as named (name)
    union
    select distinct name from graph_definition
) as known
where not starts_with(name, 'headwater-')
  and name not in ('terra-backfill', 'terra-import', 'terra-lab', 'terra-reconcile')
order by name
