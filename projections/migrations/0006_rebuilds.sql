-- Rebuilds of projections: what is asked of them, how far they are, and the rows that came out
-- otherwise. All of it is about this database, and nothing of it can be made again from Kafka.

create table rebuilds (
    id text primary key,
    projection text not null,
    version integer not null,
    dry_run boolean not null,
    state text not null check (state in (
        'building', 'compared', 'switching', 'switched', 'switching_back', 'switched_back', 'failed'
    )),
    applied bigint not null default 0,
    total bigint not null default 0,
    added bigint not null default 0,
    removed bigint not null default 0,
    changed bigint not null default 0,
    examples jsonb not null default '[]',
    ends jsonb not null default '[]',
    sent bigint not null default 0,
    error text not null default '',
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

-- Two rebuilds of one projection would each undo what the other has done.
create unique index rebuilds_under_way on rebuilds (projection)
    where state in ('building', 'switching', 'switching_back');

comment on table rebuilds is 'Rebuilds of projections, from the first offset on.';
comment on column rebuilds.id is 'The rebuild.';
comment on column rebuilds.projection is 'A projection table, or workflows.';
comment on column rebuilds.version is 'Of the projection: one more than that of the last switch.';
comment on column rebuilds.dry_run is 'Whether it is only looked at, and never switched to.';
comment on column rebuilds.state is
    'building, compared, switching, switched, switching_back, switched_back or failed.';
comment on column rebuilds.applied is 'Records that were read, as offsets of all partitions.';
comment on column rebuilds.total is 'Records that there are.';
comment on column rebuilds.added is 'Rows that only the new version has.';
comment on column rebuilds.removed is 'Rows that only the old version has.';
comment on column rebuilds.changed is 'Rows with other values.';
comment on column rebuilds.examples is
    'Some of them: [{kind, table, key, columns: {column: [before, after]}}].';
comment on column rebuilds.ends is
    'Up to which offsets it was made, by partition: what came later is not its business.';
comment on column rebuilds.sent is 'How many rows their owners were told of since the last switch.';
comment on column rebuilds.error is 'Why it failed; else empty.';
comment on column rebuilds.created_at is 'When it was asked for.';
comment on column rebuilds.updated_at is 'When any of this changed.';

create table rebuild_rows (
    rebuild text references rebuilds (id) on delete cascade,
    number bigint,
    partition integer not null,
    key bytea not null,
    before bytea,
    after bytea,
    primary key (rebuild, number)
);

comment on table rebuild_rows is 'Rows that come out otherwise: of tables as records of their topic, of workflows as text of rows.';
comment on column rebuild_rows.rebuild is 'The rebuild.';
comment on column rebuild_rows.number is 'Their order.';
comment on column rebuild_rows.partition is 'Whose owner has the row.';
comment on column rebuild_rows.key is 'Key of the row.';
comment on column rebuild_rows.before is 'The row as it was; null if there was none.';
comment on column rebuild_rows.after is 'The row as it was made again; null if there is none.';
