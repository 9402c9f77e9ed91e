-- Deployments of code and graphs.

-- name: activate_deployment
-- Applies one activation record of the topic deployments, with the rules of processors.deployments.
-- The deployment may have no row: the records of removed ones are deleted from the topic.
with s as (
    select coalesce(max(value) filter (where key = 'active_deployment'), 'none') as active,
           max(value) filter (where key = 'shared_deployment') as shared,
           max(value) filter (where key = 'shared_percent') as share
    from settings
), r as (
    select r.*, s.active
    from json_to_recordset(%(rows)s::json) as r (
        id text, after text, rollback boolean, percent integer, by text, at_ms double precision,
        "offset" bigint
    )
    cross join s
    where not exists (select from retired_deployment x where x.id = r.id)
      and r.after in (
          '', s.active || coalesce('+' || s.shared || '@' || s.share, ''),
          case when r.rollback then '' else s.active end
      )
      and case
          when r.percent = 100 then r.id <> s.active or s.shared is not null
          else s.active not in ('none', r.id) and coalesce(s.shared, r.id) = r.id
      end
), activated as (
    update deployment d
    set activated_by = r.by, activated_at = to_timestamp(r.at_ms / 1000), "offset" = r."offset"
    from r where d.id = r.id and r.id <> r.active and r.percent = 100
), unshared as (
    delete from settings using r
    where key in ('shared_deployment', 'shared_percent') and r.percent in (0, 100)
)
insert into settings (key, value)
select changed.key, changed.value
from r cross join lateral (
    values ('active_deployment', r.id, r.percent = 100),
           ('shared_deployment', r.id, r.percent between 1 and 99),
           ('shared_percent', r.percent::text, r.percent between 1 and 99)
) as changed (key, value, applies)
where changed.applies
on conflict (key) do update set value = excluded.value

-- name: create_deployment
-- Applies one deployment record of the topic deployments, with the rules of processors.deployments.
with r as (
    select * from json_to_recordset(%(rows)s::json) as r (
        id text, app text, digest text, size bigint, workflows json, params_schemas json,
        limits json, by text, at_ms double precision, "offset" bigint
    )
), restored as (
    delete from retired_deployment x using r where x.id = r.id and x.stage = 'removed'
)
insert into deployment (
    id, app, digest, size, workflows, params_schemas, limits, created_by, created_at, "offset"
)
select r.id, r.app, r.digest, r.size,
       array(select json_array_elements_text(r.workflows)), r.params_schemas, r.limits,
       r.by, to_timestamp(r.at_ms / 1000), r."offset"
from r
on conflict (id) do nothing

-- name: retire_deployment
-- Applies one record about a removal of the topic deployments, with the rules of
-- processors.deployments.
with r as (
    select * from json_to_recordset(%(rows)s::json) as r (
        id text, stage text, closing text, by text, at_ms double precision, "offset" bigint
    )
), closed as (
    insert into retired_deployment (id, stage, closing, retired_by, retired_at, "offset")
    select id, stage, closing, by, to_timestamp(at_ms / 1000), "offset"
    from r
    where stage = 'closed' and not exists (
        select from settings s
        where s.key in ('active_deployment', 'shared_deployment') and s.value = r.id
    )
    on conflict (id) do nothing
), reopened as (
    delete from retired_deployment x using r
    where x.id = r.id and x.stage = 'closed' and x.closing = r.closing and r.stage = 'reopened'
), removed as (
    update retired_deployment x
    set stage = r.stage, retired_by = r.by, retired_at = to_timestamp(r.at_ms / 1000),
        "offset" = r."offset"
    from r
    where x.id = r.id and x.stage = 'closed' and x.closing = r.closing and r.stage = 'removed'
    returning x.id
)
delete from deployment d using removed where d.id = removed.id

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
