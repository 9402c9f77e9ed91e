-- Migrations, roles and descriptions of tables.

-- name: applied_migrations
select version, checksum from schema_migrations

-- name: foreign_relations
-- What is in the schema although Headwater has not created it.
select relname
from pg_class
where relnamespace = to_regnamespace(coalesce(current_setting('headwater.schema', true), 'headwater'))
  and relkind in ('r', 'p', 'v', 'm', 'f', 'S')
  and not exists (
      select from pg_attribute
      where attrelid = to_regclass('schema_migrations') and attname = 'checksum'
  )
order by relname
limit 20

-- name: create_schema_migrations
create table if not exists schema_migrations (
    version integer primary key,
    checksum text not null,
    applied_at timestamptz not null default now()
);
comment on table schema_migrations is 'The migrations that this database has had.';
comment on column schema_migrations.version is 'Number of the file.';
comment on column schema_migrations.checksum is 'SHA-256 of the file as it was applied.';
comment on column schema_migrations.applied_at is 'When it was applied.';

-- name: create_schemas
-- Only missing schemas are created, so a login without that privilege can use existing ones.
do $$
begin
    if to_regnamespace('{schema}') is null then
        create schema {schema};
        comment on schema {schema} is 'Tables of Headwater. Only the login that migrates creates here.';
    end if;
    if to_regnamespace('{schema}_steps') is null then
        create schema {schema}_steps;
        comment on schema {schema}_steps is 'What the SQL of steps may call of Headwater.';
    end if;
    if to_regnamespace('{authors}') is null then
        create schema {authors};
        comment on schema {authors} is 'Tables that the SQL of steps (tx.execute) reads and writes.';
    end if;
end
$$

-- name: lock_migrations
-- A lock of this schema; the number distinguishes it from other locks.
select pg_advisory_xact_lock(hashtextextended(current_setting('search_path'), 4820317795))

-- name: record_migration
insert into schema_migrations (version, checksum) values (%(version)s, %(checksum)s)

-- name: grant_roles
-- Privileges of each process. Roles belong to the server, grants to this database.
do $$
declare
    part text;
begin
    foreach part in array array['{schema}_gateway', '{schema}_projector', '{schema}_worker'] loop
        continue when to_regrole(part) is null;
        execute format('grant connect on database %I to %I', current_database(), part);
        execute format('grant usage on schema {schema} to %I', part);
        execute format('grant select on all tables in schema {schema} to %I', part);
        execute format('revoke all on step_login from %I', part);
    end loop;
    if to_regrole('{schema}_gateway') is not null then
        grant insert, update, delete on idempotency, rebuilds, unexpected_hits to {schema}_gateway;
    end if;
    if to_regrole('{schema}_worker') is not null then
        grant insert, update, delete on step_epochs, step_commits to {schema}_worker;
        grant insert, delete on rebuilds to {schema}_worker;
        grant select on step_login to {schema}_worker;
        grant execute on function renew_step_login to {schema}_worker;
    end if;
    if to_regrole('{schema}_projector') is not null then
        grant insert, update, delete on all tables in schema {schema} to {schema}_projector;
        revoke all on step_epochs, step_commits, step_login, schema_migrations
            from {schema}_projector;
        grant select on schema_migrations to {schema}_projector;
        -- Row types of a session, and tables of a rebuild.
        execute format('grant create, temporary on database %I to {schema}_projector', current_database());
    end if;
end
$$

-- name: open_to_steps
-- Privileges on tables of `authors`, including future ones of the migrating login. Nothing must be
-- revoked: only the owner can access tables of the schema `headwater` without a grant.
do $$
declare
    relation record;
begin
    grant usage on schema {schema}_steps to {schema}_steps;
    grant execute on all functions in schema {schema}_steps to {schema}_steps;
    grant usage, create on schema {authors} to {schema}_steps;
    alter default privileges in schema {authors} grant all on tables to {schema}_steps;
    alter default privileges in schema {authors} grant all on sequences to {schema}_steps;
    for relation in
        select c.oid::regclass as name, c.relkind = 'S' as is_sequence
        from pg_class c
        where c.relnamespace = '{authors}'::regnamespace
          and c.relkind in ('r', 'p', 'v', 'm', 'S')
          and c.relowner = (select oid from pg_roles where rolname = current_user)
    loop
        execute format(
            'grant all on %s %s to {schema}_steps',
            case when relation.is_sequence then 'sequence' else 'table' end, relation.name
        );
    end loop;
end
$$

-- name: make_step_login
select renew_step_login()

-- name: make_step_role
do $$
begin
    -- Roles belong to the server: another of its databases may have created it concurrently.
    if not exists (select from pg_roles where rolname = '{schema}_steps') then
        begin
            create role {schema}_steps nologin;
        exception when duplicate_object or unique_violation then null;
        end;
    end if;
end
$$

-- name: keep_step_login
-- The password is kept. The name follows the database, which may be a restored copy.
insert into step_login as known (name, password, verifier)
values (%(name)s, %(password)s, %(verifier)s)
on conflict (only_row) do update
set name = excluded.name, password = excluded.password, verifier = excluded.verifier
where known.name <> excluded.name

-- name: step_login
select name, password from step_login

-- name: describe_columns
select attname, format_type(atttypid, atttypmod), col_description(attrelid, attnum)
from pg_attribute
where attrelid = (
    select oid from pg_class
    where relname = %(name)s
      and relnamespace = to_regnamespace(coalesce(current_setting('headwater.schema', true), 'headwater'))
)
  and attnum > 0
  and not attisdropped
order by attnum

-- name: describe_table
select case relkind when 'v' then 'view' else 'table' end, obj_description(oid)
from pg_class
where relname = %(name)s
  and relnamespace = to_regnamespace(coalesce(current_setting('headwater.schema', true), 'headwater'))

-- name: columns_of_table
select attname, format_type(atttypid, atttypmod)
from pg_attribute
where attrelid = to_regclass(quote_ident(%(name)s))
  and attnum > 0
  and not attisdropped
order by attnum

-- name: key_of_table
select a.attname
from pg_index i
cross join unnest(i.indkey::smallint[]) with ordinality as part (number, ordinal)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = part.number
where i.indrelid = %(table)s::regclass and i.indisprimary
order by part.ordinal

-- name: owns_table
-- Whether this login may alter a table.
select pg_has_role(relowner, 'usage')
from pg_class
where oid = to_regclass(quote_ident(%(name)s))

-- name: row_types
-- OIDs of this session's row types.
select typname, oid::bigint
from pg_type
where typnamespace = pg_my_temp_schema() and typtype = 'c'

-- name: setting_rows
-- Deliveries that may have set a row of a user or a subject: the newest that write to its table.
select event_id, source, type, user_id, partition, "offset"
from webhook_outcomes
where {of} = %(of)s
  and (source, type) in (select * from unnest(%(sources)s::text[], %(types)s::text[]))
order by received_at desc
limit %(limit)s
