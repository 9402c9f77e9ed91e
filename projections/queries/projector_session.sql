-- A projector that freezes in a transaction must not hold its offsets or the horizon of sync.
-- Statements are planned each time, because a cached plan for a small table would remain as it
-- grows. Rows lost in a crash of the server are read from Kafka again, except where clients already
-- got a response: there a crash must not lose anything.
select set_config('idle_in_transaction_session_timeout', '20s', false),
       set_config('statement_timeout', %(statement_timeout)s, false),
       set_config('plan_cache_mode', 'force_custom_plan', false),
       set_config('synchronous_commit', %(synchronous_commit)s, false),
       set_config('timezone', 'UTC', false)
