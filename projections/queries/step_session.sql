-- A worker that freezes in a transaction must not keep its successor waiting, nor one that is gone.
-- What a log record says to have taken effect has to outlive a crash of the server.
select set_config('idle_in_transaction_session_timeout', '10s', false),
       set_config('statement_timeout', '30s', false),
       set_config('client_connection_check_interval', '2s', false),
       set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), false)
