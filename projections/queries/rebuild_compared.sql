update rebuilds
set state = case when state = 'building' then 'compared' else state end,
    added = %(added)s, removed = %(removed)s, changed = %(changed)s,
    sent = 0, examples = %(examples)s::jsonb, ends = %(ends)s::jsonb, updated_at = now()
where id = %(id)s
