-- What makes the SQL of steps take effect once. These tables are no projection: Kafka holds every other
-- fact here, but not that a transaction of Postgres has committed. A rebuild leaves them as they are;
-- without them, and without what authors keep in this database, steps whose SQL took effect just before
-- a crash would take effect again. Rows of step_commits go as soon as the log has the step's record.

create table step_epochs (
    partition integer primary key,
    epoch bigint not null
);

comment on table step_epochs is
    'Who may run the SQL of steps: the latest claim of each partition. Transactions of steps lock its row for share; a newer claim waits for them, and they are refused from then on.';
comment on column step_epochs.partition is 'Partition of workflow-history.';
comment on column step_epochs.epoch is 'Offset of the claim there.';

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
