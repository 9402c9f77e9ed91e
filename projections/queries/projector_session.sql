-- A projector that freezes in a transaction must not hold its offsets, nor the horizon of sync. Its
-- statements are planned each time: a plan made while a table was small would be kept as it grows.
-- What a crash of the server loses is read from Kafka again; where clients were answered meanwhile,
-- a crash may lose nothing.
select set_config('idle_in_transaction_session_timeout', '20s', false),
       set_config('statement_timeout', %(statement_timeout)s, false),
       set_config('plan_cache_mode', 'force_custom_plan', false),
       set_config('synchronous_commit', %(synchronous_commit)s, false),
       set_config('timezone', 'UTC', false)
