select {key} as subject from {table} where user_id = %(user_id)s
