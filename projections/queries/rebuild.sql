select id, projection, version, dry_run, state, applied, total, added, removed, changed, examples, ends,
          sent, error, created_at
from rebuilds
where id = %(id)s
