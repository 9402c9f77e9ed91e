-- Adds current hits, and merges those of minutes that ended long ago into one row.
with old as (
    delete from unexpected_hits
    where project_id = %(project_id)s and minute > '-infinity'
      and minute < date_trunc('minute', %(at)s::timestamptz) - interval '1 hour'
    returning hits, last_at
)
insert into unexpected_hits as u (project_id, minute, hits, last_at)
select %(project_id)s, date_trunc('minute', %(at)s::timestamptz), %(hits)s::bigint, %(at)s
union all
select %(project_id)s, '-infinity', sum(hits), max(last_at) from old having count(*) > 0
on conflict (project_id, minute) do update set
    hits = u.hits + excluded.hits,
    last_at = greatest(u.last_at, excluded.last_at)
