-- How far the projections are, what they could not take, and which database this is.

create table projection_offsets (
    projection text,
    topic text,
    partition integer,
    next_offset bigint not null,
    applied_at timestamptz,
    epoch bigint not null default -1,
    cause bigint not null default -1,
    primary key (projection, topic, partition)
-- Rewritten with every batch: room on the page lets Postgres do it without touching the index.
) with (fillfactor = 50);

comment on table projection_offsets is
    'How far each projection has applied each partition; written with the rows themselves.';
comment on column projection_offsets.projection is 'The projection.';
comment on column projection_offsets.topic is 'The topic.';
comment on column projection_offsets.partition is 'The partition.';
comment on column projection_offsets.next_offset is 'The first offset that is not applied yet.';
comment on column projection_offsets.applied_at is 'When the last batch was applied.';
comment on column projection_offsets.epoch is
    'Offset of the latest claim before next_offset; -1 where nobody claims. Records of another epoch do not count.';
comment on column projection_offsets.cause is
    'Highest offset of a command whose outcome was applied; -1 where there are none.';

create table projection_errors (
    topic text,
    partition integer,
    "offset" bigint,
    error text not null,
    value bytea,
    at timestamptz not null,
    primary key (topic, partition, "offset")
);

comment on table projection_errors is
    'Records that the projector could not apply, bytes untouched; empty in a healthy house.';
comment on column projection_errors.topic is 'Where the record lies: topic.';
comment on column projection_errors.partition is 'Where the record lies: partition.';
comment on column projection_errors."offset" is 'Where the record lies: offset.';
comment on column projection_errors.error is 'What was expected and what was found.';
comment on column projection_errors.value is 'The record''s value.';
comment on column projection_errors.at is 'When it was met.';

create table projection_identity (
    id uuid not null default gen_random_uuid(),
    one boolean primary key default true check (one)
);

insert into projection_identity default values;

comment on table projection_identity is
    'Names this database: transaction numbers, and so the cursors of sync, mean nothing in another.';
comment on column projection_identity.id is 'Drawn when the database was first migrated.';
comment on column projection_identity.one is 'Holds the table to one row.';
