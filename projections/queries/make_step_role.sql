do $$
begin
    -- Roles belong to the server: another of its databases may have created it concurrently.
    if not exists (select from pg_roles where rolname = 'headwater_steps') then
        begin
            create role headwater_steps nologin;
        exception when duplicate_object or unique_violation then null;
        end;
    end if;
end
$$
