select count(*) as found from {table} where user_id = %(user_id)s
