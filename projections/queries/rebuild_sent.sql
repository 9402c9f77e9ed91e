update rebuilds
set sent = %(sent)s, updated_at = now()
where id = %(id)s
