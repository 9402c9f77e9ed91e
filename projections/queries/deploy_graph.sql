-- One record of graph-definitions, decided as processors.graph.catalogue decides it.
with r as (
    select * from json_to_recordset(%(rows)s::json) as r (
        name text, document text, digest text, app text, after text, at_ms double precision,
        moves integer, "offset" bigint
    )
), taken as (
    insert into graph_app (name, app, moves) select name, app, moves from r where app <> ''
    on conflict (name) do update set app = excluded.app, moves = excluded.moves
    where graph_app.moves <= excluded.moves
)
insert into graph_definition (name, version, digest, document, app, deployed_at, "offset")
select r.name, coalesce(newest.version, 0) + 1, r.digest, r.document::json, nullif(r.app, ''),
       to_timestamp(r.at_ms / 1000), r."offset"
from r left join lateral (
    select d.version, d.digest from graph_definition d
    where d.name = r.name order by d.version desc limit 1
) as newest on true
where r.document <> ''
  and r.digest is distinct from newest.digest
  and (
    r.app <> ''
      and not exists (select from graph_app a where a.name = r.name and a.moves > r.moves)
    or r.app = '' and not exists (select from graph_app a where a.name = r.name)
       and r.after in ('', coalesce(newest.digest, 'none'))
  )
