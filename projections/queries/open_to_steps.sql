-- Privileges on tables of `authors`, including future ones of the migrating login. Nothing must be
-- revoked: only the owner can access tables of the schema `headwater` without a grant.
do $$
declare
    relation record;
begin
    grant usage on schema headwater_steps to headwater_steps;
    grant execute on all functions in schema headwater_steps to headwater_steps;
    grant usage, create on schema authors to headwater_steps;
    alter default privileges in schema authors grant all on tables to headwater_steps;
    alter default privileges in schema authors grant all on sequences to headwater_steps;
    for relation in
        select c.oid::regclass as name, c.relkind = 'S' as is_sequence
        from pg_class c
        where c.relnamespace = 'authors'::regnamespace
          and c.relkind in ('r', 'p', 'v', 'm', 'S')
          and c.relowner = (select oid from pg_roles where rolname = current_user)
    loop
        execute format(
            'grant all on %s %s to headwater_steps',
            case when relation.is_sequence then 'sequence' else 'table' end, relation.name
        );
    end loop;
end
$$
