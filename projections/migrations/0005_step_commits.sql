-- What makes the SQL of steps take effect once. These tables are no projection: Kafka holds every other
-- fact here, but not that a transaction of Postgres has committed. A rebuild leaves them as they are;
-- without them, and without what authors keep in this database, steps whose SQL took effect just before
-- a crash would take effect again. Rows of step_commits go as soon as the log has the step's record.

create table step_epochs (
    partition integer primary key,
    epoch bigint not null,
    ticket uuid not null default gen_random_uuid()
);

comment on table step_epochs is
    'Who may run the SQL of steps: the latest claim of each partition. Transactions of steps lock its row for share; a newer claim waits for them, and they are refused from then on.';
comment on column step_epochs.partition is 'Partition of workflow-history.';
comment on column step_epochs.epoch is 'Offset of the claim there.';
comment on column step_epochs.ticket is 'What the owner shows with each step; no step sees it.';

create table step_commits (
    partition integer,
    instance_key text collate "C",
    run_number integer,
    step_key text collate "C",
    attempt integer not null,
    epoch bigint not null,
    returned bytea not null,
    committed_at timestamptz not null default now(),
    -- The partition, which follows from the instance, comes first: takeovers ask for it.
    primary key (partition, instance_key, run_number, step_key)
);

comment on table step_commits is
    'Steps whose SQL took effect and that may not be in the log yet; few at any time.';
comment on column step_commits.partition is 'Partition of workflow-history.';
comment on column step_commits.instance_key is 'The workflow and the instance, as keys of workflow-history.';
comment on column step_commits.run_number is 'The run.';
comment on column step_commits.step_key is 'The step.';
comment on column step_commits.attempt is 'The attempt whose SQL it is.';
comment on column step_commits.epoch is 'Epoch of the owner that had it run.';
comment on column step_commits.returned is
    'What is to be recorded of the step, but for its SQL: StepReturned as MessagePack.';
comment on column step_commits.committed_at is 'When its transaction began.';

create table step_login (
    only_row boolean primary key default true check (only_row),
    name text not null,
    password text not null,
    verifier text not null
);

comment on table step_login is
    'The login that the SQL of steps runs as, which reaches the schema authors alone. Workers read it.';
comment on column step_login.only_row is 'There is one row.';
comment on column step_login.name is 'Name of the login.';
comment on column step_login.password is 'Its password, which `headwater migrate` has drawn.';
comment on column step_login.verifier is 'The password as the server keeps it (SCRAM-SHA-256).';

-- Steps run as a role that reaches no table here: this function is all they can call. It writes a row for
-- the owner that shows the ticket of its claim. Nothing in it is looked up where steps can create.
create function headwater_steps.commit_step(
    of_partition integer, of_epoch bigint, of_ticket uuid,
    of_instance text, of_run integer, of_step text, of_attempt integer, of_return bytea,
    out latest bigint, out is_held boolean, out is_written boolean, out stored bytea
)
    language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    -- Locked for share until the transaction ends: a newer claim waits, and then knows of the row.
    select e.epoch, e.epoch = of_epoch and e.ticket = of_ticket
    into latest, is_held
    from headwater.step_epochs e
    where e.partition = of_partition
    for share;
    is_held := coalesce(is_held, false);
    is_written := false;
    if not is_held then
        return;
    end if;
    insert into headwater.step_commits
        (partition, instance_key, run_number, step_key, attempt, epoch, returned)
    values (of_partition, of_instance, of_run, of_step, of_attempt, of_epoch, of_return)
    on conflict do nothing;
    is_written := found;
    if not is_written then
        -- A statement of its own: it sees the row that the insert has waited for.
        select c.returned into stored
        from headwater.step_commits c
        where c.partition = of_partition
          and c.instance_key = of_instance
          and c.run_number = of_run
          and c.step_key = of_step;
    end if;
    -- What the log says to have taken effect has to outlive a crash of the server.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end;
$$;

revoke execute on function headwater_steps.commit_step from public;
comment on function headwater_steps.commit_step is
    'Writes the commit row of a step, for the owner that has the ticket of its partition.';

-- What `discard all` does, but for the plans of the function above, which would be made for each step.
-- It has no search path of its own, which would be that of the step again when it ends.
create function headwater_steps.reset_session() returns void
    language plpgsql
as $$
begin
    execute 'reset all';
    execute 'close all';
    execute 'unlisten *';
    execute 'discard temp';
    perform pg_catalog.pg_advisory_unlock_all();
end;
$$;

revoke execute on function headwater_steps.reset_session from public;
comment on function headwater_steps.reset_session is
    'Undoes what the SQL of a step has changed in its session.';

-- A login may change its own password, so SQL of a step could lock the others out. Workers, whose login
-- makes no roles, call this when the login is refused.
create function renew_step_login() returns void
    language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
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
end;
$$;

revoke execute on function renew_step_login from public;
comment on function renew_step_login is
    'Makes the login of headwater.step_login, or gives it its password again.';
