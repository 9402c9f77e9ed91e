do $$
declare
    made record;
begin
    grant usage, create on schema public to headwater_steps;
    alter default privileges in schema public grant all on tables to headwater_steps;
    alter default privileges in schema public grant all on sequences to headwater_steps;
    for made in
        select c.oid::regclass as name, c.relkind = 'S' as is_sequence
        from pg_class c
        where c.relnamespace = 'public'::regnamespace
          and c.relkind in ('r', 'p', 'v', 'm', 'S')
          and c.relowner = (select oid from pg_roles where rolname = current_user)
    loop
        execute format(
            'grant all on %s %s to headwater_steps',
            case when made.is_sequence then 'sequence' else 'table' end, made.name
        );
    end loop;
end
$$
