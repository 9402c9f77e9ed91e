-- The login that the SQL of steps runs as, as headwater.step_login has it.
do $$
declare
    login record;
begin
    select name, verifier into strict login from headwater.step_login;
    if exists (select from pg_roles where rolname = login.name) then
        execute format('alter role %I login password %L', login.name, login.verifier);
    else
        execute format(
            'create role %I login nosuperuser nocreatedb nocreaterole noreplication password %L',
            login.name, login.verifier
        );
    end if;
    if not pg_has_role(login.name, 'headwater_steps', 'usage') then
        execute format('grant headwater_steps to %I', login.name);
    end if;
end
$$
