-- The projection tables, as they are declared in schemas/tables.py: table_ddl.py prints them, and a
-- test compares. Each row also says which delivery set each of its columns, and which transaction
-- wrote it last, so that what changed since can be read without missing a late commit.

create function value_source(column_sources json, column_name text)
    returns table (event_id text, "position" text, sent_at timestamptz)
    language sql stable
begin atomic
    select d ->> 'event_id', d ->> 'position', (d ->> 'sent_at')::timestamptz
    from (
        select column_sources -> 'deliveries'
               -> (column_sources -> 'columns' ->> column_name)::integer
    ) as delivery (d)
    where d is not null;
end;

comment on function value_source(json, text) is
    'The delivery that set a column of a row: select s.* from daily_summary d, value_source(d.column_sources, ''steps'') s. No row when the column is unset.';

create table terra_connections (
    id uuid generated always as (md5(terra_user_id)::uuid) stored,
    terra_user_id text not null check (terra_user_id <> ''),
    user_id text,
    provider text,
    reference_id text,
    scopes text,
    active boolean,
    last_deactivated_at timestamptz,
    deactivated_at timestamptz,
    column_sources json not null,
    changed_in xid8 not null default pg_current_xact_id(),
    updated_at timestamptz not null,
    primary key (terra_user_id)
);

create index terra_connections_of_user on terra_connections (user_id);
create index terra_connections_changed on terra_connections (changed_in);

comment on table terra_connections is 'A user''s link to a wearable account. Topic connections.';
comment on column terra_connections.id is 'Id of the row, made from terra_user_id.';
comment on column terra_connections.terra_user_id is 'Terra''s id of the connection.';
comment on column terra_connections.user_id is 'Our user.';
comment on column terra_connections.provider is 'The wearable''s maker as Terra writes it, for example GARMIN.';
comment on column terra_connections.reference_id is 'The id of ours that Terra echoes.';
comment on column terra_connections.scopes is 'Granted scopes, comma separated.';
comment on column terra_connections.active is 'False once the user deauthorized, revoked access or was given a new connection.';
comment on column terra_connections.last_deactivated_at is 'The signed time of the delivery that closed it last; it stays when the connection is opened again, and so names the time since.';
comment on column terra_connections.deactivated_at is 'When active became false: the signed time of the delivery that said so. Null while active.';
comment on column terra_connections.column_sources is 'Which delivery set each column that is set: {"deliveries": [{event_id, position, sent_at}], "columns": {column: index into deliveries}}. Read it with value_source(column_sources, ''column'').';
comment on column terra_connections.changed_in is 'The transaction that last wrote the row; reading what changed goes by it.';
comment on column terra_connections.updated_at is 'When the projector last wrote the row.';
create table daily_summary (
    user_id text not null check (user_id <> ''),
    source text not null,
    datetime date not null,
    steps bigint,
    resting_heart_rate double precision,
    heart_rate_variability double precision,
    active_zone_minutes double precision,
    fatburn_active_zone_minutes double precision,
    cardio_active_zone_minutes double precision,
    peak_active_zone_minutes double precision,
    stress_management_score double precision,
    strain double precision,
    recovery_score double precision,
    sleep_score double precision,
    sleep_minutes double precision,
    bed_time timestamptz,
    wake_up_time timestamptz,
    deep_sleep_minutes double precision,
    rem_sleep_minutes double precision,
    light_sleep_minutes double precision,
    awake_minutes double precision,
    deep_sleep_percent double precision,
    rem_sleep_percent double precision,
    light_sleep_percent double precision,
    awake_percent double precision,
    spo2 double precision,
    respiratory_rate double precision,
    skin_temperature double precision,
    column_sources json not null,
    changed_in xid8 not null default pg_current_xact_id(),
    updated_at timestamptz not null,
    primary key (user_id, source, datetime)
);

create index daily_summary_changed on daily_summary (changed_in);

comment on table daily_summary is 'A user''s day as one wearable saw it. Topic daily-summary.';
comment on column daily_summary.user_id is 'Our user.';
comment on column daily_summary.source is 'The wearable''s maker, lower case, for example garmin.';
comment on column daily_summary.datetime is 'The day, YYYY-MM-DD, in the record''s own time zone.';
comment on column daily_summary.steps is 'Steps walked.';
comment on column daily_summary.resting_heart_rate is 'Beats per minute; from sleep where there is one, else from the day.';
comment on column daily_summary.heart_rate_variability is 'RMSSD in milliseconds; from sleep where there is one, else from the day.';
comment on column daily_summary.active_zone_minutes is 'Minutes of low, moderate and vigorous activity together.';
comment on column daily_summary.fatburn_active_zone_minutes is 'Minutes of low intensity.';
comment on column daily_summary.cardio_active_zone_minutes is 'Minutes of moderate intensity.';
comment on column daily_summary.peak_active_zone_minutes is 'Minutes of vigorous intensity.';
comment on column daily_summary.stress_management_score is 'Average stress level, 0 to 100.';
comment on column daily_summary.strain is 'Strain (Whoop: 0 to 21).';
comment on column daily_summary.recovery_score is 'Recovery, 0 to 100; Whoop''s readiness where recovery is missing.';
comment on column daily_summary.sleep_score is 'Sleep score, 0 to 100.';
comment on column daily_summary.sleep_minutes is 'Minutes asleep, of the main sleep that ended on this day.';
comment on column daily_summary.bed_time is 'Start of that sleep, RFC 3339 with the record''s own offset.';
comment on column daily_summary.wake_up_time is 'End of that sleep, RFC 3339 with the record''s own offset.';
comment on column daily_summary.deep_sleep_minutes is 'Minutes of deep sleep.';
comment on column daily_summary.rem_sleep_minutes is 'Minutes of REM sleep.';
comment on column daily_summary.light_sleep_minutes is 'Minutes of light sleep.';
comment on column daily_summary.awake_minutes is 'Minutes awake during that sleep.';
comment on column daily_summary.deep_sleep_percent is 'Deep sleep as a percentage of asleep and awake time together.';
comment on column daily_summary.rem_sleep_percent is 'REM sleep as a percentage of asleep and awake time together.';
comment on column daily_summary.light_sleep_percent is 'Light sleep as a percentage of asleep and awake time together.';
comment on column daily_summary.awake_percent is 'Awake time as a percentage of asleep and awake time together.';
comment on column daily_summary.spo2 is 'Average blood oxygen saturation, percent.';
comment on column daily_summary.respiratory_rate is 'Average breaths per minute.';
comment on column daily_summary.skin_temperature is 'Deviation from the wearer''s baseline, degrees Celsius.';
comment on column daily_summary.column_sources is 'Which delivery set each column that is set: {"deliveries": [{event_id, position, sent_at}], "columns": {column: index into deliveries}}. Read it with value_source(column_sources, ''column'').';
comment on column daily_summary.changed_in is 'The transaction that last wrote the row; reading what changed goes by it.';
comment on column daily_summary.updated_at is 'When the projector last wrote the row.';
create table sleep_sessions (
    user_id text not null check (user_id <> ''),
    source text not null,
    start_time timestamptz not null,
    end_time timestamptz,
    is_nap boolean,
    raw json,
    column_sources json not null,
    changed_in xid8 not null default pg_current_xact_id(),
    updated_at timestamptz not null,
    primary key (user_id, source, start_time)
);

create index sleep_sessions_changed on sleep_sessions (changed_in);

comment on table sleep_sessions is 'One sleep, whole. Topic sleep-sessions.';
comment on column sleep_sessions.user_id is 'Our user.';
comment on column sleep_sessions.source is 'The wearable''s maker, lower case, for example garmin.';
comment on column sleep_sessions.start_time is 'Start of the sleep, RFC 3339 in UTC.';
comment on column sleep_sessions.end_time is 'End of the sleep, RFC 3339 in UTC.';
comment on column sleep_sessions.is_nap is 'True for a nap; naps stay out of daily_summary.';
comment on column sleep_sessions.raw is 'The record as Terra sent it, JSON text byte for byte.';
comment on column sleep_sessions.column_sources is 'Which delivery set each column that is set: {"deliveries": [{event_id, position, sent_at}], "columns": {column: index into deliveries}}. Read it with value_source(column_sources, ''column'').';
comment on column sleep_sessions.changed_in is 'The transaction that last wrote the row; reading what changed goes by it.';
comment on column sleep_sessions.updated_at is 'When the projector last wrote the row.';
