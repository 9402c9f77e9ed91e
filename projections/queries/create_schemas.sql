-- Only missing schemas are created, so a login without that privilege can use existing ones.
do $$
begin
    if to_regnamespace('headwater') is null then
        create schema headwater;
        comment on schema headwater is 'Tables of Headwater. Only the login that migrates creates here.';
    end if;
    if to_regnamespace('headwater_steps') is null then
        create schema headwater_steps;
        comment on schema headwater_steps is 'What the SQL of steps may call of Headwater.';
    end if;
    if to_regnamespace('authors') is null then
        create schema authors;
        comment on schema authors is 'Tables that the SQL of steps (tx.execute) reads and writes.';
    end if;
end
$$
