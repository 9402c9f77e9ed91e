update rebuilds
set state = %(state)s, error = %(error)s, updated_at = now()
where id = %(id)s
