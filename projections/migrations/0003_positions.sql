-- Progress of projections, records they could not apply, and the identity of this database.

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
-- Rewritten with every batch: free space on the page allows updates without touching the index.
) with (fillfactor = 50);

comment on table projection_offsets is
    'Progress of each projection on each partition; written in one transaction with the rows.';
comment on column projection_offsets.projection is 'The projection.';
comment on column projection_offsets.topic is 'The topic.';
comment on column projection_offsets.partition is 'The partition.';
comment on column projection_offsets.next_offset is 'The next offset to apply.';
comment on column projection_offsets.applied_at is 'When the last batch was applied.';
comment on column projection_offsets.epoch is
    'Offset of the latest claim before next_offset; -1 without claims. Records of other epochs are ignored.';
comment on column projection_offsets.cause is
    'Highest offset of a command whose outcome was applied; -1 if there are none.';
comment on column projection_offsets.leader_epoch is
    'Leader epoch of the record before next_offset, or a later one; -1 if unknown. Used to detect records that Kafka lost.';

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
    'Records that the projector could not apply, with unchanged bytes; normally empty.';
comment on column projection_errors.topic is 'Topic of the record.';
comment on column projection_errors.partition is 'Partition of the record.';
comment on column projection_errors."offset" is 'Offset of the record.';
comment on column projection_errors.error is 'Expected and actual value.';
comment on column projection_errors.value is 'Value of the record.';
comment on column projection_errors.at is 'When the projector read it.';

create table projection_identity (
    id uuid not null default gen_random_uuid(),
    deletions_pruned xid8 not null default '0',
    topic_prefix text,
    growths jsonb not null default '[]',
    one boolean primary key default true check (one)
);

insert into projection_identity default values;

comment on table projection_identity is
    'Identifies this database: transaction numbers, and thus cursors of sync, are not valid in another one.';
comment on column projection_identity.id is 'Generated when the database was first migrated.';
comment on column projection_identity.deletions_pruned is
    'Last transaction whose deletions were pruned from the table deletions; 0 if none were.';
comment on column projection_identity.topic_prefix is
    'Prefix of the topics that the rows come from; null before the projector has run.';
comment on column projection_identity.growths is
    'How the topics got more partitions, the oldest growth first: [[number of partitions before, [end of each partition of the topic webhooks]]].';
comment on column projection_identity.one is 'Limits the table to one row.';

-- A server that crashed, or a promoted replica, may have lost the last transactions, and reuses
-- their numbers. Later rows belong to a later epoch, and a cursor of an earlier epoch is moved back
-- to its start.
create table sync_epochs (
    id uuid primary key default gen_random_uuid(),
    number bigint generated always as identity unique,
    began_in xid8 not null default pg_current_xact_id(),
    began_at timestamptz not null
);

comment on table sync_epochs is
    'Sessions that wrote projection tables, in order. Cursors of sync contain an epoch.';
comment on column sync_epochs.id is 'Id in cursors.';
comment on column sync_epochs.number is 'Order of the epochs.';
comment on column sync_epochs.began_in is
    'Transaction that began the epoch: its writes are later, and everything earlier is durable.';
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
    'Rows deleted from projection tables in the last 30 days, for readers of sync.';
comment on column deletions.table_name is 'The table.';
comment on column deletions.key is 'The primary key of the row: {column: value}.';
comment on column deletions.user_id is 'The user of the row, if known.';
comment on column deletions.deleted_in is 'Transaction that deleted it last.';
comment on column deletions.deleted_at is 'When it was deleted last.';
