-- The first statement of a session, so that all its writes are later.
insert into sync_epochs (began_at) values (to_timestamp(%(now_ms)s / 1000.0))
