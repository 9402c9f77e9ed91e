delete from rebuild_rows
where rebuild = %(id)s
