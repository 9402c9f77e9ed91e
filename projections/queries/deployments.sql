-- Deployments of code and graphs.

-- name: activate_deployment
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

-- name: create_deployment
-- Applies one deployment record of the topic deployments, with the rules of processors.deployments.
insert into deployment (
    id, app, digest, size, workflows, params_schemas, limits, created_by, created_at, "offset"
)
select r.id, r.app, r.digest, r.size,
       array(select json_array_elements_text(r.workflows)), r.params_schemas, r.limits,
       r.by, to_timestamp(r.at_ms / 1000), r."offset"
from json_to_recordset(%(rows)s::json) as r (
    id text, app text, digest text, size bigint, workflows json, params_schemas json, limits json,
    by text, at_ms double precision,
    "offset" bigint
)
on conflict (id) do nothing

-- name: deploy_graph
-- Applies one record of graph-definitions, with the rules of processors.graph.catalogue.
with r as (
    select * from json_to_recordset(%(rows)s::json) as r (
        name text, document text, digest text, app text, after text, at_ms double precision,
        moves integer, deployment text, "offset" bigint
    )
), announced as (
    select r.* from r where (r.app <> '' or r.deployment <> '')
    and not exists (select from graph_app a where a.name = r.name and a.moves > r.moves)
), taken as (
    insert into graph_app (name, app, deployment, moves)
    select name, nullif(app, ''), case when app <> '' then nullif(deployment, '') end, moves
    from announced
    on conflict (name) do update set moves = excluded.moves, deployment = excluded.deployment,
        app = case when excluded.app is null and graph_app.deployment is null
              then graph_app.app else excluded.app end
), candidate as (
    select document, digest, app from announced where app <> '' and document <> ''
    union all
    -- The name is released: the graph deployed under it earlier becomes the newest version again.
    (select d.document::text, d.digest, '' from announced join graph_app a using (name)
     join graph_definition d using (name)
     where announced.app = '' and a.deployment is not null and d.app is null
     order by d.version desc limit 1)
    union all
    select document, digest, app from r
    where app = '' and deployment = '' and document <> ''
      and not exists (select from graph_app a where a.name = r.name and a.app is not null)
      and r.after in ('', coalesce((
          select d.digest from graph_definition d where d.name = r.name
          order by d.version desc limit 1
      ), 'none'))
)
insert into graph_definition (name, version, digest, document, app, deployed_at, "offset")
select r.name, coalesce(newest.version, 0) + 1, candidate.digest, candidate.document::json,
       nullif(candidate.app, ''), to_timestamp(r.at_ms / 1000), r."offset"
from r cross join candidate left join lateral (
    select d.version, d.digest, coalesce(d.app, '') as app from graph_definition d
    where d.name = r.name order by d.version desc limit 1
) as newest on true
where (candidate.digest, candidate.app) is distinct from (newest.digest, newest.app)
