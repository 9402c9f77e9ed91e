do $$
begin
    -- Roles belong to the server: another of its databases may have made it, perhaps just now.
    if not exists (select from pg_roles where rolname = 'headwater_steps') then
        begin
            create role headwater_steps nologin;
        exception when duplicate_object or unique_violation then null;
        end;
    end if;
end
$$
