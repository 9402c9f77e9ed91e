-- Privileges of each process. Roles belong to the server, grants to this database.
do $$
declare
    part text;
begin
    foreach part in array array['headwater_gateway', 'headwater_projector', 'headwater_worker'] loop
        continue when to_regrole(part) is null;
        execute format('grant connect on database %I to %I', current_database(), part);
        execute format('grant usage on schema headwater to %I', part);
        execute format('grant select on all tables in schema headwater to %I', part);
        execute format('revoke all on step_login from %I', part);
    end loop;
    if to_regrole('headwater_gateway') is not null then
        grant insert, update, delete on idempotency, rebuilds, unexpected_hits to headwater_gateway;
    end if;
    if to_regrole('headwater_worker') is not null then
        grant insert, update, delete on step_epochs, step_commits to headwater_worker;
        grant select on step_login to headwater_worker;
        grant execute on function renew_step_login to headwater_worker;
    end if;
    if to_regrole('headwater_projector') is not null then
        grant insert, update, delete on all tables in schema headwater to headwater_projector;
        revoke all on step_epochs, step_commits, step_login, schema_migrations
            from headwater_projector;
        grant select on schema_migrations to headwater_projector;
        -- Row types of a session, and tables of a rebuild.
        execute format('grant create, temporary on database %I to headwater_projector', current_database());
    end if;
end
$$
