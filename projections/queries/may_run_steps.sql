select exists (
    select from pg_roles where rolname = 'headwater_steps' and pg_has_role(rolname, 'member')
)
