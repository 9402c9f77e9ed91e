-- Callbacks that the gateway receives although workers execute the runs. This table is no
-- projection: only Postgres has it. Minutes that ended a while ago are merged into one row.

create table unexpected_hits (
    project_id text collate "C",
    minute timestamptz,
    hits bigint not null,
    last_at timestamptz not null,
    primary key (project_id, minute)
);

comment on table unexpected_hits is 'Number of queue callbacks that the gateway received.';
comment on column unexpected_hits.project_id is 'The project.';
comment on column unexpected_hits.minute is 'The minute; -infinity for all earlier ones.';
comment on column unexpected_hits.hits is 'Number of callbacks.';
comment on column unexpected_hits.last_at is 'When the last one arrived.';
