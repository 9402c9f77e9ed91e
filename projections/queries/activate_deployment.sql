-- Applies one activation record of the topic deployments, with the rules of processors.deployments.
with r as (
    select r.* from json_to_recordset(%(rows)s::json) as r (
        id text, after text, by text, at_ms double precision, "offset" bigint
    )
    join deployment d on d.id = r.id
    left join settings s on s.key = 'active_deployment'
    where r.id is distinct from s.value and r.after in ('', coalesce(s.value, 'none'))
), activated as (
    update deployment d
    set activated_by = r.by, activated_at = to_timestamp(r.at_ms / 1000), "offset" = r."offset"
    from r where d.id = r.id
)
insert into settings (key, value) select 'active_deployment', r.id from r
on conflict (key) do update set value = excluded.value
