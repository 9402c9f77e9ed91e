-- The unique index rejects a second active rebuild of the projection.
update rebuilds r
set state = %(state)s, sent = -1, updated_at = now()
where id = %(id)s
  and state = any(%(after)s::text[])
  and not dry_run
  and not exists (
      select from rebuilds other
      where other.projection = r.projection
        and other.state in ('building', 'switching', 'switching_back')
  )
returning id, projection, version, dry_run, state, applied, total, added, removed, changed, examples, ends,
          sent, error, created_at
