-- A projector that freezes in a transaction must not hold its offsets, nor the horizon of sync.
select set_config('idle_in_transaction_session_timeout', '20s', false),
       set_config('statement_timeout', '50s', false),
       set_config('timezone', 'UTC', false)
