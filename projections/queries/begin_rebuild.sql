insert into rebuilds (id, projection, version, dry_run, state)
select %(id)s, %(projection)s, coalesce(max(version), 1) + 1, %(dry_run)s, 'building'
from rebuilds
where projection = %(projection)s
  and state = 'switched'
on conflict do nothing
returning id, projection, version, dry_run, state, applied, total, added, removed, changed, examples, ends,
          sent, error, created_at
