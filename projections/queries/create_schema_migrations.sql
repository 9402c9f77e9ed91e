create table if not exists schema_migrations (
    version integer primary key,
    checksum text not null,
    applied_at timestamptz not null default now()
);
comment on table schema_migrations is 'The migrations that this database has had.';
comment on column schema_migrations.version is 'Number of the file.';
comment on column schema_migrations.checksum is 'SHA-256 of the file as it was applied.';
comment on column schema_migrations.applied_at is 'When it was applied.';
