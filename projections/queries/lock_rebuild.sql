select pg_try_advisory_lock(hashtextextended(%(id)s, 6))
