-- An arbitrary number that no other lock uses.
select pg_advisory_xact_lock(4820317795)
