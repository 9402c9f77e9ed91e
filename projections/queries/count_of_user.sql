select count(*) as rows from {table} where user_id = %(user_id)s
