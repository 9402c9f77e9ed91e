-- Workflows of authors: those whose code an owner has or had, those with instances, and deployed
-- graphs and code.
select distinct on (name) name, params_schema
from (
    select name, params_schema, since from ({declared}) as declared
    union all
    select name, null, '-infinity' from deployment cross join lateral unnest(workflows) as ours (name)
    union all
    select name, null, '-infinity' from workflow_owner cross join lateral unnest(known) as had (name)
    union all
    select name, null, '-infinity' from ({of_instances}) as used
    union all
    select name, document ->> 'inputSchema', deployed_at from graph_definition
) as known
where {of_authors}
order by name, since desc, params_schema is null
