-- Those of apps, without the workflows that come with Headwater, and graphs that are deployed.
select name
from (
    select distinct name collate "C" as name
    from workflow_owner cross join lateral unnest(workflows) as named (name)
    union
    select distinct name from graph_definition
) as known
where {of_authors}
order by name
