-- How far the projections are, what they could not take, and which database this is.

create table projection_offsets (
    projection text,
    topic text,
    partition integer,
    next_offset bigint not null,
    applied_at timestamptz,
    epoch bigint not null default -1,
    cause bigint not null default -1,
    leader_epoch integer not null default -1,
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
comment on column projection_offsets.leader_epoch is
    'Epoch of the leader that appended what is before next_offset, or of a later one; -1 where it is not known. It tells whether Kafka has lost that since.';

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
    deletions_pruned xid8 not null default '0',
    one boolean primary key default true check (one)
);

insert into projection_identity default values;

comment on table projection_identity is
    'Names this database: transaction numbers, and so the cursors of sync, mean nothing in another.';
comment on column projection_identity.id is 'Drawn when the database was first migrated.';
comment on column projection_identity.deletions_pruned is
    'The last transaction whose deletions are no longer in the table deletions; 0 while all are.';
comment on column projection_identity.one is 'Holds the table to one row.';

-- A server that crashed, or a replica that took over, may have lost the end of what was written, and
-- hands out the lost transaction numbers again. What is written after that is written in a later
-- epoch, and a cursor of an earlier one goes back to where that began.
create table sync_epochs (
    id uuid primary key default gen_random_uuid(),
    number bigint generated always as identity unique,
    began_in xid8 not null default pg_current_xact_id(),
    began_at timestamptz not null
);

comment on table sync_epochs is
    'The sessions that wrote projection tables, one after the other: cursors of sync name them.';
comment on column sync_epochs.id is 'Named by cursors.';
comment on column sync_epochs.number is 'The order of the epochs.';
comment on column sync_epochs.began_in is
    'The transaction that began it: all that it wrote is later, all that is earlier is durable.';
comment on column sync_epochs.began_at is 'When it began.';

create table deletions (
    table_name text,
    key jsonb,
    user_id text,
    deleted_in xid8 not null default pg_current_xact_id(),
    deleted_at timestamptz not null,
    primary key (table_name, key)
);

create index deletions_in on deletions (deleted_in);

comment on table deletions is
    'Rows of projection tables that were deleted in the last 30 days: sync tells its readers.';
comment on column deletions.table_name is 'The table.';
comment on column deletions.key is 'The primary key of the row: {column: value}.';
comment on column deletions.user_id is 'Whose the row was, when that was known.';
comment on column deletions.deleted_in is 'The transaction that deleted it, the last time.';
comment on column deletions.deleted_at is 'When that was.';
