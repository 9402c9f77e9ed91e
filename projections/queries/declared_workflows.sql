-- Current workflows: those of the active deployment, on which new runs begin, before those of the
-- newest claims of owners.
select
    name collate "C" as name, o.params_schemas ->> name as params_schema,
    (o.limits -> name)::jsonb as concurrency, o.claimed_at as since
from workflow_owner o cross join lateral unnest(o.workflows) as named (name)
union all
select name, d.params_schemas ->> name, (d.limits -> name)::jsonb, 'infinity'
from settings s
join deployment d on d.id = s.value
cross join lateral unnest(d.workflows) as named (name)
where s.key = 'active_deployment'
