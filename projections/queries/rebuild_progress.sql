update rebuilds
set applied = %(applied)s, total = %(total)s, updated_at = now()
where id = %(id)s
