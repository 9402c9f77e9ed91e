-- Any number does as long as nothing else uses it.
select pg_advisory_xact_lock(4820317795)
