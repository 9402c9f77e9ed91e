-- Before anything else of a session, so that all of it is later.
insert into sync_epochs (began_at) values (to_timestamp(%(now_ms)s / 1000.0))
