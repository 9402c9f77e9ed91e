-- Callbacks that came to the gateway while workers execute the runs. This table is no projection:
-- Postgres alone has it. Minutes that are over for a while become one row.

create table unexpected_hits (
    project_id text collate "C",
    minute timestamptz,
    hits bigint not null,
    last_at timestamptz not null,
    primary key (project_id, minute)
);

comment on table unexpected_hits is 'How many callbacks of queues have come to the gateway.';
comment on column unexpected_hits.project_id is 'The project.';
comment on column unexpected_hits.minute is 'When, as a minute; -infinity for all that came before.';
comment on column unexpected_hits.hits is 'How many.';
comment on column unexpected_hits.last_at is 'When the last of them came.';
