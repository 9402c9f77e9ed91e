-- Rebuilds of projections: their requested state, progress, and differing rows. They concern only
-- this database and cannot be rebuilt from Kafka.

create table rebuilds (
    id text primary key,
    projection text not null,
    version integer,
    dry_run boolean not null,
    state text not null check (state in (
        'building', 'verified', 'compared', 'switching', 'switched', 'switching_back', 'switched_back',
        'failed'
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

-- Two rebuilds of one projection would undo each other's changes.
create unique index rebuilds_under_way on rebuilds (projection)
    where state in ('building', 'switching', 'switching_back');

comment on table rebuilds is 'Rebuilds of projections, from the first offset on, and verifications.';
comment on column rebuilds.id is 'The rebuild.';
comment on column rebuilds.projection is 'A projection table, or workflows.';
comment on column rebuilds.version is
    'Version of the projection: one more than that of the last switch. Null for a verification.';
comment on column rebuilds.dry_run is 'Whether it is only compared and never switched to.';
comment on column rebuilds.state is
    'building, verified, compared, switching, switched, switching_back, switched_back or failed.';
comment on column rebuilds.applied is 'Records read so far, as offsets of all partitions.';
comment on column rebuilds.total is 'Records in total.';
comment on column rebuilds.added is 'Rows that Postgres lacks.';
comment on column rebuilds.removed is 'Rows that only Postgres has.';
comment on column rebuilds.changed is 'Rows with different values.';
comment on column rebuilds.examples is
    'Some of them: [{kind, table, key, columns: {column: [in Postgres, right value]}}].';
comment on column rebuilds.ends is
    'End offsets of the rebuild by partition; later records are not part of it.';
comment on column rebuilds.sent is
    'Number of rows published to their owners since the last switch.';
comment on column rebuilds.error is 'Why it failed; otherwise empty.';
comment on column rebuilds.created_at is 'When it was requested.';
comment on column rebuilds.updated_at is 'When the row last changed.';

create table rebuild_rows (
    rebuild text references rebuilds (id) on delete cascade,
    number bigint,
    partition integer,
    key bytea not null,
    before bytea,
    after bytea,
    primary key (rebuild, number)
);

comment on table rebuild_rows is
    'Rows that differ: rows of Postgres as text, and rows of owners as records of their topic.';
comment on column rebuild_rows.rebuild is 'The rebuild.';
comment on column rebuild_rows.number is 'Their order.';
comment on column rebuild_rows.partition is
    'Partition of the owner that has the row; null for a row of Postgres.';
comment on column rebuild_rows.key is 'Key of the row.';
comment on column rebuild_rows.before is 'The old row; null if there was none.';
comment on column rebuild_rows.after is 'The rebuilt row; null if there is none.';
