select set_config('statement_timeout', '5s', false),
       set_config('default_transaction_read_only', 'on', false),
       set_config('timezone', 'UTC', false)
