-- Workflows of authors: those of which an owner has or had the code, those of which there are
-- instances, and graphs that are deployed. The newest claim says what params are.
select distinct on (name) name, params_schema
from (
    select
        name collate "C" as name, o.params_schemas ->> name as params_schema,
        o.claimed_at as since
    from workflow_owner o cross join lateral unnest(o.workflows) as named (name)
    union all
    select name, null, '-infinity' from workflow_owner cross join lateral unnest(known) as had (name)
    union all
    select name, null, '-infinity' from ({of_instances}) as found
    union all
    select name, document ->> 'inputSchema', deployed_at from graph_definition
) as known
where {of_authors}
order by name, since desc, params_schema is null
