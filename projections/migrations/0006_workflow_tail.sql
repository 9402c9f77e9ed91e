-- Who runs which workflows, and where the log last changed a row: what a reader that follows a run asks
-- for. Rows of before this migration have the offset 0, where a claim lies and no run: to a reader that
-- begins they are what comes first.

create table workflow_owner (
    partition integer primary key,
    epoch bigint not null,
    owner text not null,
    workflows text[] not null,
    claimed_at timestamptz not null
);

comment on table workflow_owner is
    'Who owns the partitions of workflow-history: the latest claim of each. Topic workflow-history.';
comment on column workflow_owner.partition is 'Partition of workflow-history.';
comment on column workflow_owner.epoch is 'Offset of the claim there.';
comment on column workflow_owner.owner is 'The owner''s name of itself.';
comment on column workflow_owner.workflows is 'Names of the workflows whose code it has.';
comment on column workflow_owner.claimed_at is 'When it claimed the partition.';

alter table workflow_step
    add column trimmed_before bigint,
    add column "offset" bigint not null default 0;
alter table workflow_event add column "offset" bigint not null default 0;

create index workflow_step_changed
    on workflow_step (workflow_name, instance_id, run_number, "offset");
create index workflow_event_changed
    on workflow_event (workflow_name, instance_id, run_number, "offset");

comment on column workflow_step.trimmed_before is
    'Of a loop: iterations before this are forgotten, and what lies in them has no rows; null while none is.';
comment on column workflow_step."offset" is
    'Offset, in the instance''s partition of workflow-history, of the last record that changed the row; 0 when it is from before this was noted.';
comment on column workflow_event."offset" is
    'Offset, in the instance''s partition of workflow-history, of the last record that changed the row; 0 when it is from before this was noted.';

comment on column workflow_step.sequence is
    'Number, within the run, of the event that showed it first; decides between equal ordinals. Below 0 for what a retry took over from the run before, in the order of that run.';
comment on column workflow_event.sequence is
    'Its number within the run: the order of arrival. Below 0 for what a retry took over from the run before.';
comment on column workflow_event.run_number is
    'The run; a new run gets those of an old one that nobody took if it is a retry, and else none.';
comment on column workflow_instance.started_at is
    'When the current run began; of a retry, when the run began that it goes on with.';
