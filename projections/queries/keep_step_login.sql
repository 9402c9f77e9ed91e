-- The password is kept. The name follows the database, which may be a restored copy.
insert into step_login as known (name, password, verifier)
values (%(name)s, %(password)s, %(verifier)s)
on conflict (only_row) do update
set name = excluded.name, password = excluded.password, verifier = excluded.verifier
where known.name <> excluded.name
