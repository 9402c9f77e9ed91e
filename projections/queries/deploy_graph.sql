-- One record of graph-definitions, decided as processors.graph.catalogue decides it.
with r as (
    select * from json_to_recordset(%(rows)s::json) as r (
        name text, document text, digest text, app text, after text, at_ms double precision,
        moves integer, deployment text, "offset" bigint
    )
), told as (
    select r.* from r where (r.app <> '' or r.deployment <> '')
    and not exists (select from graph_app a where a.name = r.name and a.moves > r.moves)
), taken as (
    insert into graph_app (name, app, deployment, moves)
    select name, nullif(app, ''), case when app <> '' then nullif(deployment, '') end, moves
    from told
    on conflict (name) do update set moves = excluded.moves, deployment = excluded.deployment,
        app = case when excluded.app is null and graph_app.deployment is null
              then graph_app.app else excluded.app end
), said as (
    select document, digest, app from told where app <> '' and document <> ''
    union all
    -- The name is free again: what had it before the deployment is its newest version.
    (select d.document::text, d.digest, '' from told join graph_app a using (name)
     join graph_definition d using (name)
     where told.app = '' and a.deployment is not null and d.app is null
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
select r.name, coalesce(newest.version, 0) + 1, said.digest, said.document::json,
       nullif(said.app, ''), to_timestamp(r.at_ms / 1000), r."offset"
from r cross join said left join lateral (
    select d.version, d.digest, coalesce(d.app, '') as app from graph_definition d
    where d.name = r.name order by d.version desc limit 1
) as newest on true
where (said.digest, said.app) is distinct from (newest.digest, newest.app)
