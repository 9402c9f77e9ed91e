insert into rebuild_rows (rebuild, number, partition, key, before, after)
values (%(id)s, %(number)s, %(partition)s, %(key)s, %(before)s, %(after)s)
