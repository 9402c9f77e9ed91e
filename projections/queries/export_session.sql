select set_config('default_transaction_read_only', 'on', false),
       set_config('transaction_read_only', 'on', false),
       set_config('timezone', 'UTC', false),
       set_config('cursor_tuple_fraction', '1.0', false)
