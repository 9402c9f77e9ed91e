select id, projection, version, dry_run, state, applied, total, added, removed, changed, examples, ends,
          sent, error, created_at
from rebuilds
order by created_at desc, id desc
limit %(limit)s
