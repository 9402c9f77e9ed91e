-- Projection tables, as declared in schemas/tables.py: table_ddl.py prints them, and a test
-- compares. Each row also has the delivery that set each column, and the transaction that last
-- wrote it, so that readers of changes do not miss a late commit.

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
comment on column terra_connections.id is 'Id of the row, derived from terra_user_id.';
comment on column terra_connections.terra_user_id is 'Terra''s id of the connection.';
comment on column terra_connections.user_id is 'User id.';
comment on column terra_connections.provider is 'The wearable''s maker as Terra writes it, for example GARMIN.';
comment on column terra_connections.reference_id is 'The user id that Terra echoes.';
comment on column terra_connections.scopes is 'Granted scopes, comma separated.';
comment on column terra_connections.active is 'False once the user deauthorized, revoked access or received a new connection.';
comment on column terra_connections.last_deactivated_at is 'When the latest delivery that closed it was first sent; kept when it is opened again.';
comment on column terra_connections.deactivated_at is 'When active became false: when the delivery was first sent. Null while active.';
comment on column terra_connections.column_sources is 'The delivery that set each column: {"deliveries": [{event_id, position, sent_at, version of the normalizer unless 1}], "columns": {column: index into deliveries}}. Read it with value_source(column_sources, ''column'').';
comment on column terra_connections.changed_in is 'Transaction that last wrote the row; sync reads changes in this order.';
comment on column terra_connections.updated_at is 'When the projector last wrote the row.';
create index terra_connections_active on terra_connections (md5(terra_user_id)) where active;
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
    utc_offset_minutes bigint,
    column_sources json not null,
    changed_in xid8 not null default pg_current_xact_id(),
    updated_at timestamptz not null,
    primary key (user_id, source, datetime)
);

create index daily_summary_changed on daily_summary (changed_in);

comment on table daily_summary is 'A user''s day as recorded by one wearable. Topic daily-summary.';
comment on column daily_summary.user_id is 'User id.';
comment on column daily_summary.source is 'The wearable''s maker, lower case, for example garmin.';
comment on column daily_summary.datetime is 'The day, YYYY-MM-DD, in the record''s own time zone.';
comment on column daily_summary.steps is 'Steps walked.';
comment on column daily_summary.resting_heart_rate is 'Beats per minute; of the main sleep that ended on this day if it has one, else of the day.';
comment on column daily_summary.heart_rate_variability is 'RMSSD in milliseconds; of the main sleep if it has one, else of the day.';
comment on column daily_summary.active_zone_minutes is 'Minutes of low, moderate and vigorous activity together.';
comment on column daily_summary.fatburn_active_zone_minutes is 'Minutes of low intensity.';
comment on column daily_summary.cardio_active_zone_minutes is 'Minutes of moderate intensity.';
comment on column daily_summary.peak_active_zone_minutes is 'Minutes of vigorous intensity.';
comment on column daily_summary.stress_management_score is 'Average stress level, 0 to 100.';
comment on column daily_summary.strain is 'Strain (Whoop: 0 to 21).';
comment on column daily_summary.recovery_score is 'Recovery, 0 to 100, of the main sleep, else of the day; Whoop''s readiness if it has none.';
comment on column daily_summary.sleep_score is 'Sleep score, 0 to 100, of the main sleep; of the day if no sleep is known.';
comment on column daily_summary.sleep_minutes is 'Minutes asleep, of the main sleep: the longest that ended on this day and is not a nap.';
comment on column daily_summary.bed_time is 'Start of that sleep; local time is utc_offset_minutes later.';
comment on column daily_summary.wake_up_time is 'End of that sleep; local time is utc_offset_minutes later.';
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
comment on column daily_summary.utc_offset_minutes is 'Offset from UTC in minutes: at the end of the main sleep, else at the beginning of the day.';
comment on column daily_summary.column_sources is 'The delivery that set each column: {"deliveries": [{event_id, position, sent_at, version of the normalizer unless 1}], "columns": {column: index into deliveries}}. Read it with value_source(column_sources, ''column'').';
comment on column daily_summary.changed_in is 'Transaction that last wrote the row; sync reads changes in this order.';
comment on column daily_summary.updated_at is 'When the projector last wrote the row.';
create table sleep_sessions (
    user_id text not null check (user_id <> ''),
    source text not null,
    start_time timestamptz not null,
    end_time timestamptz,
    is_nap boolean,
    raw json,
    summary_id text,
    is_main boolean,
    utc_offset_minutes bigint,
    column_sources json not null,
    changed_in xid8 not null default pg_current_xact_id(),
    updated_at timestamptz not null,
    primary key (user_id, source, start_time)
);

create index sleep_sessions_changed on sleep_sessions (changed_in);

comment on table sleep_sessions is 'One sleep; a later version of a sleep replaces it. Topic sleep-sessions.';
comment on column sleep_sessions.user_id is 'User id.';
comment on column sleep_sessions.source is 'The wearable''s maker, lower case, for example garmin.';
comment on column sleep_sessions.start_time is 'Start of the sleep, RFC 3339 in UTC.';
comment on column sleep_sessions.end_time is 'End of the sleep, RFC 3339 in UTC.';
comment on column sleep_sessions.is_nap is 'True for a nap; naps are not part of daily_summary.';
comment on column sleep_sessions.raw is 'The record as Terra sent it, JSON text byte for byte.';
comment on column sleep_sessions.summary_id is 'Terra''s id of the sleep, if it has one; a later sleep with the same id replaces it.';
comment on column sleep_sessions.is_main is 'True for the main sleep of the day on which it ended, which daily_summary describes.';
comment on column sleep_sessions.utc_offset_minutes is 'Offset of local time from UTC at its end, in minutes.';
comment on column sleep_sessions.column_sources is 'The delivery that set each column: {"deliveries": [{event_id, position, sent_at, version of the normalizer unless 1}], "columns": {column: index into deliveries}}. Read it with value_source(column_sources, ''column'').';
comment on column sleep_sessions.changed_in is 'Transaction that last wrote the row; sync reads changes in this order.';
comment on column sleep_sessions.updated_at is 'When the projector last wrote the row.';
create table activities (
    user_id text not null check (user_id <> ''),
    source text not null,
    start_time timestamptz not null,
    summary_id text not null,
    end_time timestamptz,
    type bigint,
    name text,
    duration_seconds double precision,
    calories double precision,
    distance_meters double precision,
    steps bigint,
    avg_heart_rate double precision,
    max_heart_rate double precision,
    strain double precision,
    raw json,
    utc_offset_minutes bigint,
    column_sources json not null,
    changed_in xid8 not null default pg_current_xact_id(),
    updated_at timestamptz not null,
    primary key (user_id, source, start_time, summary_id)
);

create index activities_changed on activities (changed_in);

comment on table activities is 'One workout; a later version of a workout replaces it. Topic activities.';
comment on column activities.user_id is 'User id.';
comment on column activities.source is 'The wearable''s maker, lower case, for example garmin.';
comment on column activities.start_time is 'Start of the workout, RFC 3339 in UTC.';
comment on column activities.summary_id is 'Terra''s id of the workout; empty if it has none. A later workout of the same id replaces it.';
comment on column activities.end_time is 'End of the workout, RFC 3339 in UTC.';
comment on column activities.type is 'Kind of the workout, as Terra''s number.';
comment on column activities.name is 'The wearable''s name of the workout.';
comment on column activities.duration_seconds is 'Seconds from start to end.';
comment on column activities.calories is 'Total kilocalories burned.';
comment on column activities.distance_meters is 'Distance in meters.';
comment on column activities.steps is 'Steps walked or run.';
comment on column activities.avg_heart_rate is 'Average beats per minute.';
comment on column activities.max_heart_rate is 'Highest beats per minute.';
comment on column activities.strain is 'Strain (Whoop: 0 to 21).';
comment on column activities.raw is 'The record as Terra sent it, JSON text byte for byte.';
comment on column activities.utc_offset_minutes is 'Offset of local time from UTC at its start, in minutes.';
comment on column activities.column_sources is 'The delivery that set each column: {"deliveries": [{event_id, position, sent_at, version of the normalizer unless 1}], "columns": {column: index into deliveries}}. Read it with value_source(column_sources, ''column'').';
comment on column activities.changed_in is 'Transaction that last wrote the row; sync reads changes in this order.';
comment on column activities.updated_at is 'When the projector last wrote the row.';
create table biomarkers_raw (
    user_id text not null check (user_id <> ''),
    source text not null,
    date date not null,
    code text not null,
    value double precision,
    value_text text,
    unit text,
    status text,
    classification text,
    reference_low double precision,
    reference_high double precision,
    name text,
    upload_id text,
    samples bigint,
    column_sources json not null,
    changed_in xid8 not null default pg_current_xact_id(),
    updated_at timestamptz not null,
    primary key (user_id, source, date, code)
);

create index biomarkers_raw_changed on biomarkers_raw (changed_in);

comment on table biomarkers_raw is 'One measurement of a user''s body or blood on one day, or the mean of several. Topic biomarkers.';
comment on column biomarkers_raw.user_id is 'User id.';
comment on column biomarkers_raw.source is 'Where it was measured: terra_lab, or a wearable''s maker with _body, such as withings_body.';
comment on column biomarkers_raw.date is 'The day, YYYY-MM-DD: a lab''s collection date, or the day in the body''s own time zone.';
comment on column biomarkers_raw.code is 'What was measured, for example glucose; as the lab sent it if it has no canonical code.';
comment on column biomarkers_raw.value is 'The number: weight and body fat are the latest of the day, blood pressure is its mean.';
comment on column biomarkers_raw.value_text is 'The lab''s text if it is not a number, for example <0.5.';
comment on column biomarkers_raw.unit is 'The unit, as sent.';
comment on column biomarkers_raw.status is 'optimal, borderline or out_of_range; null if the lab''s classification is none of these.';
comment on column biomarkers_raw.classification is 'The lab''s own classification, as sent.';
comment on column biomarkers_raw.reference_low is 'Lower end of the lab''s reference range.';
comment on column biomarkers_raw.reference_high is 'Upper end of the lab''s reference range.';
comment on column biomarkers_raw.name is 'Name in the report, as sent.';
comment on column biomarkers_raw.upload_id is 'The upload of the report, lab_uploads.id.';
comment on column biomarkers_raw.samples is 'Number of averaged samples of the day; null for a single value.';
comment on column biomarkers_raw.column_sources is 'The delivery that set each column: {"deliveries": [{event_id, position, sent_at, version of the normalizer unless 1}], "columns": {column: index into deliveries}}. Read it with value_source(column_sources, ''column'').';
comment on column biomarkers_raw.changed_in is 'Transaction that last wrote the row; sync reads changes in this order.';
comment on column biomarkers_raw.updated_at is 'When the projector last wrote the row.';
create table lab_uploads (
    id text not null check (id <> ''),
    user_id text,
    storage_key text,
    original_name text,
    content_type text,
    size bigint,
    terra_status text,
    terra_upload_id text,
    terra_response text,
    created_at timestamptz,
    parsed_at timestamptz,
    column_sources json not null,
    changed_in xid8 not null default pg_current_xact_id(),
    updated_at timestamptz not null,
    primary key (id)
);

create index lab_uploads_of_user on lab_uploads (user_id);
create index lab_uploads_changed on lab_uploads (changed_in);

comment on table lab_uploads is 'A lab report that a user uploaded, and its status at Terra. Topic lab-uploads.';
comment on column lab_uploads.id is 'Id of the upload.';
comment on column lab_uploads.user_id is 'User id.';
comment on column lab_uploads.storage_key is 'Key of the file in blob storage.';
comment on column lab_uploads.original_name is 'The file''s name, as it was uploaded.';
comment on column lab_uploads.content_type is 'The MIME type of the file.';
comment on column lab_uploads.size is 'Bytes of the file.';
comment on column lab_uploads.terra_status is 'pending, submitted, parsed, or failed:<HTTP status, network, no_report or Terra''s code>.';
comment on column lab_uploads.terra_upload_id is 'Terra''s id of the upload, which its report contains.';
comment on column lab_uploads.terra_response is 'Terra''s response to the submitted file.';
comment on column lab_uploads.created_at is 'When it was uploaded.';
comment on column lab_uploads.parsed_at is 'When the report arrived: the time of its delivery. Null until then.';
comment on column lab_uploads.column_sources is 'The delivery that set each column: {"deliveries": [{event_id, position, sent_at, version of the normalizer unless 1}], "columns": {column: index into deliveries}}. Read it with value_source(column_sources, ''column'').';
comment on column lab_uploads.changed_in is 'Transaction that last wrote the row; sync reads changes in this order.';
comment on column lab_uploads.updated_at is 'When the projector last wrote the row.';
create table terra_lab_uploads (
    terra_upload_id text not null check (terra_upload_id <> ''),
    user_id text,
    upload_id text,
    column_sources json not null,
    changed_in xid8 not null default pg_current_xact_id(),
    updated_at timestamptz not null,
    primary key (terra_upload_id)
);

create index terra_lab_uploads_of_user on terra_lab_uploads (user_id);
create index terra_lab_uploads_changed on terra_lab_uploads (changed_in);

comment on table terra_lab_uploads is 'The upload of Terra''s upload id: Terra''s lab reports contain no other reference. Topic terra-lab-uploads.';
comment on column terra_lab_uploads.terra_upload_id is 'Terra''s id of the upload.';
comment on column terra_lab_uploads.user_id is 'User id.';
comment on column terra_lab_uploads.upload_id is 'Id of the upload, lab_uploads.id.';
comment on column terra_lab_uploads.column_sources is 'The delivery that set each column: {"deliveries": [{event_id, position, sent_at, version of the normalizer unless 1}], "columns": {column: index into deliveries}}. Read it with value_source(column_sources, ''column'').';
comment on column terra_lab_uploads.changed_in is 'Transaction that last wrote the row; sync reads changes in this order.';
comment on column terra_lab_uploads.updated_at is 'When the projector last wrote the row.';
create table users (
    user_id text generated always as (id) stored,
    id text not null check (id <> ''),
    created_at timestamptz,
    last_seen_at timestamptz,
    column_sources json not null,
    changed_in xid8 not null default pg_current_xact_id(),
    updated_at timestamptz not null,
    primary key (id)
);

create index users_of_user on users (user_id);
create index users_changed on users (changed_in);

comment on table users is 'A user whose deliveries filled rows. Topic users.';
comment on column users.user_id is 'The same as id, under the name that it has in all other tables.';
comment on column users.id is 'User id.';
comment on column users.created_at is 'Time of the user''s earliest delivery.';
comment on column users.last_seen_at is 'Time of the user''s latest delivery, to the hour: that of the first one in the latest hour.';
comment on column users.column_sources is 'The delivery that set each column: {"deliveries": [{event_id, position, sent_at, version of the normalizer unless 1}], "columns": {column: index into deliveries}}. Read it with value_source(column_sources, ''column'').';
comment on column users.changed_in is 'Transaction that last wrote the row; sync reads changes in this order.';
comment on column users.updated_at is 'When the projector last wrote the row.';
create view biomarkers_wide as
with units (of_code, of_unit, factor, term) as (values
    ('glucose', 'mg/dl', 1.0, 0.0),
    ('glucose', 'mmol/l', 18.0156, 0.0),
    ('glucose', 'g/l', 100.0, 0.0),
    ('hba1c', '%', 1.0, 0.0),
    ('hba1c', 'percent', 1.0, 0.0),
    ('hba1c', '%oftotalhgb', 1.0, 0.0),
    ('hba1c', 'mmol/mol', 0.09148, 2.152),
    ('total_cholesterol', 'mg/dl', 1.0, 0.0),
    ('total_cholesterol', 'mmol/l', 38.665, 0.0),
    ('ldl', 'mg/dl', 1.0, 0.0),
    ('ldl', 'mmol/l', 38.665, 0.0),
    ('hdl', 'mg/dl', 1.0, 0.0),
    ('hdl', 'mmol/l', 38.665, 0.0),
    ('triglycerides', 'mg/dl', 1.0, 0.0),
    ('triglycerides', 'mmol/l', 88.57, 0.0),
    ('creatinine', 'mg/dl', 1.0, 0.0),
    ('creatinine', 'umol/l', 0.011312, 0.0),
    ('creatinine', 'mg/l', 0.1, 0.0),
    ('hemoglobin', 'g/dl', 1.0, 0.0),
    ('hemoglobin', 'g/l', 0.1, 0.0),
    ('hemoglobin', 'mmol/l', 1.6114, 0.0),
    ('vitamin_d', 'ng/ml', 1.0, 0.0),
    ('vitamin_d', 'ug/l', 1.0, 0.0),
    ('vitamin_d', 'nmol/l', 0.40064, 0.0),
    ('ferritin', 'ng/ml', 1.0, 0.0),
    ('ferritin', 'ug/l', 1.0, 0.0),
    ('tsh', 'mu/l', 1.0, 0.0),
    ('tsh', 'uu/ml', 1.0, 0.0),
    ('crp', 'mg/l', 1.0, 0.0),
    ('crp', 'mg/dl', 10.0, 0.0),
    ('crp', 'ug/ml', 1.0, 0.0),
    ('systolic_bp', 'mmhg', 1.0, 0.0),
    ('systolic_bp', 'mm[hg]', 1.0, 0.0),
    ('systolic_bp', 'kpa', 7.50062, 0.0),
    ('diastolic_bp', 'mmhg', 1.0, 0.0),
    ('diastolic_bp', 'mm[hg]', 1.0, 0.0),
    ('diastolic_bp', 'kpa', 7.50062, 0.0),
    ('weight_kg', 'kg', 1.0, 0.0),
    ('weight_kg', 'lb', 0.45359237, 0.0),
    ('weight_kg', 'lbs', 0.45359237, 0.0),
    ('weight_kg', '[lb_av]', 0.45359237, 0.0),
    ('weight_kg', 'g', 0.001, 0.0),
    ('body_fat_percent', '%', 1.0, 0.0),
    ('body_fat_percent', 'percent', 1.0, 0.0),
    ('non_hdl_cholesterol', 'mg/dl', 1.0, 0.0),
    ('non_hdl_cholesterol', 'mmol/l', 38.665, 0.0),
    ('apolipoprotein_b', 'mg/dl', 1.0, 0.0),
    ('apolipoprotein_b', 'g/l', 100.0, 0.0),
    ('lipoprotein_a', 'nmol/l', 1.0, 0.0),
    ('hs_crp', 'mg/l', 1.0, 0.0),
    ('hs_crp', 'mg/dl', 10.0, 0.0),
    ('hs_crp', 'ug/ml', 1.0, 0.0),
    ('homocysteine', 'umol/l', 1.0, 0.0),
    ('homocysteine', 'mg/l', 7.397, 0.0),
    ('insulin', 'uu/ml', 1.0, 0.0),
    ('insulin', 'mu/l', 1.0, 0.0),
    ('insulin', 'pmol/l', 0.16666666666666666, 0.0),
    ('egfr', 'ml/min/1.73m2', 1.0, 0.0),
    ('egfr', 'ml/min/1.73', 1.0, 0.0),
    ('egfr', 'ml/min/1.73m^2', 1.0, 0.0),
    ('egfr', 'ml/min/{1.73_m2}', 1.0, 0.0),
    ('urea_nitrogen', 'mg/dl', 1.0, 0.0),
    ('urea_nitrogen', 'mmol/l', 2.8014, 0.0),
    ('uric_acid', 'mg/dl', 1.0, 0.0),
    ('uric_acid', 'umol/l', 0.016811, 0.0),
    ('uric_acid', 'mmol/l', 16.811, 0.0),
    ('alt', 'u/l', 1.0, 0.0),
    ('alt', 'ukat/l', 60.0, 0.0),
    ('ast', 'u/l', 1.0, 0.0),
    ('ast', 'ukat/l', 60.0, 0.0),
    ('alp', 'u/l', 1.0, 0.0),
    ('alp', 'ukat/l', 60.0, 0.0),
    ('ggt', 'u/l', 1.0, 0.0),
    ('ggt', 'ukat/l', 60.0, 0.0),
    ('bilirubin', 'mg/dl', 1.0, 0.0),
    ('bilirubin', 'umol/l', 0.058466, 0.0),
    ('albumin', 'g/dl', 1.0, 0.0),
    ('albumin', 'g/l', 0.1, 0.0),
    ('sodium', 'mmol/l', 1.0, 0.0),
    ('sodium', 'meq/l', 1.0, 0.0),
    ('potassium', 'mmol/l', 1.0, 0.0),
    ('potassium', 'meq/l', 1.0, 0.0),
    ('calcium', 'mg/dl', 1.0, 0.0),
    ('calcium', 'mmol/l', 4.0078, 0.0),
    ('calcium', 'meq/l', 2.0039, 0.0),
    ('magnesium', 'mg/dl', 1.0, 0.0),
    ('magnesium', 'mmol/l', 2.4305, 0.0),
    ('magnesium', 'meq/l', 1.21525, 0.0),
    ('iron', 'ug/dl', 1.0, 0.0),
    ('iron', 'umol/l', 5.5845, 0.0),
    ('vitamin_b12', 'pg/ml', 1.0, 0.0),
    ('vitamin_b12', 'ng/l', 1.0, 0.0),
    ('vitamin_b12', 'pmol/l', 1.35537, 0.0),
    ('folate', 'ng/ml', 1.0, 0.0),
    ('folate', 'ug/l', 1.0, 0.0),
    ('folate', 'nmol/l', 0.4414, 0.0),
    ('free_t3', 'pg/ml', 1.0, 0.0),
    ('free_t3', 'ng/l', 1.0, 0.0),
    ('free_t3', 'ng/dl', 10.0, 0.0),
    ('free_t3', 'pmol/l', 0.65097, 0.0),
    ('free_t4', 'ng/dl', 1.0, 0.0),
    ('free_t4', 'ng/l', 0.1, 0.0),
    ('free_t4', 'pg/ml', 0.1, 0.0),
    ('free_t4', 'pmol/l', 0.077687, 0.0),
    ('testosterone', 'ng/dl', 1.0, 0.0),
    ('testosterone', 'nmol/l', 28.842, 0.0),
    ('testosterone', 'ng/ml', 100.0, 0.0),
    ('testosterone', 'ug/l', 100.0, 0.0),
    ('cortisol', 'ug/dl', 1.0, 0.0),
    ('cortisol', 'nmol/l', 0.036246, 0.0),
    ('cortisol', 'ng/ml', 0.1, 0.0),
    ('cortisol', 'ug/l', 0.1, 0.0),
    ('hematocrit', '%', 1.0, 0.0),
    ('hematocrit', 'percent', 1.0, 0.0),
    ('hematocrit', 'l/l', 100.0, 0.0),
    ('red_blood_cells', '10^12/l', 1.0, 0.0),
    ('red_blood_cells', '10^6/ul', 1.0, 0.0),
    ('red_blood_cells', '10e6/ul', 1.0, 0.0),
    ('red_blood_cells', '10^6/mm3', 1.0, 0.0),
    ('red_blood_cells', 'm/ul', 1.0, 0.0),
    ('red_blood_cells', 'mill/ul', 1.0, 0.0),
    ('red_blood_cells', 'million/ul', 1.0, 0.0),
    ('red_blood_cells', '10e12/l', 1.0, 0.0),
    ('red_blood_cells', 't/l', 1.0, 0.0),
    ('white_blood_cells', '10^9/l', 1.0, 0.0),
    ('white_blood_cells', '10^3/ul', 1.0, 0.0),
    ('white_blood_cells', '10e3/ul', 1.0, 0.0),
    ('white_blood_cells', '10^3/mm3', 1.0, 0.0),
    ('white_blood_cells', 'k/ul', 1.0, 0.0),
    ('white_blood_cells', 'thou/ul', 1.0, 0.0),
    ('white_blood_cells', 'thousand/ul', 1.0, 0.0),
    ('white_blood_cells', '10e9/l', 1.0, 0.0),
    ('white_blood_cells', 'g/l', 1.0, 0.0),
    ('white_blood_cells', '/ul', 0.001, 0.0),
    ('white_blood_cells', 'cells/ul', 0.001, 0.0),
    ('platelets', '10^9/l', 1.0, 0.0),
    ('platelets', '10^3/ul', 1.0, 0.0),
    ('platelets', '10e3/ul', 1.0, 0.0),
    ('platelets', '10^3/mm3', 1.0, 0.0),
    ('platelets', 'k/ul', 1.0, 0.0),
    ('platelets', 'thou/ul', 1.0, 0.0),
    ('platelets', 'thousand/ul', 1.0, 0.0),
    ('platelets', '10e9/l', 1.0, 0.0),
    ('platelets', 'g/l', 1.0, 0.0),
    ('platelets', '/ul', 0.001, 0.0),
    ('platelets', 'cells/ul', 0.001, 0.0)
),
converted as (
    select user_id, source, date, code, value, coalesce(trim(unit), '') = '' as has_no_unit,
        case when coalesce(trim(unit), '') = '' then value else value * factor + term end as canonical
    from biomarkers_raw
    left join units on of_code = code and of_unit = replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(lower(unit), ' ', ''), 'µ', 'u'), 'μ', 'u'), 'mcg', 'ug'), 'mcl', 'ul'), '(calc)', ''), 'iu/', 'u/'), '×', 'x'), 'x10', '10'), '10*', '10^'), '²', '2'), '³', '3')
    where code in ('glucose', 'hba1c', 'total_cholesterol', 'ldl', 'hdl', 'triglycerides', 'creatinine', 'hemoglobin', 'vitamin_d', 'ferritin', 'tsh', 'crp', 'systolic_bp', 'diastolic_bp', 'weight_kg', 'body_fat_percent', 'non_hdl_cholesterol', 'apolipoprotein_b', 'lipoprotein_a', 'hs_crp', 'homocysteine', 'insulin', 'egfr', 'urea_nitrogen', 'uric_acid', 'alt', 'ast', 'alp', 'ggt', 'bilirubin', 'albumin', 'sodium', 'potassium', 'calcium', 'magnesium', 'iron', 'vitamin_b12', 'folate', 'free_t3', 'free_t4', 'testosterone', 'cortisol', 'hematocrit', 'red_blood_cells', 'white_blood_cells', 'platelets')
)
select user_id, source, date,
    max(canonical) filter (where code = 'glucose') as glucose,
    max(canonical) filter (where code = 'hba1c') as hba1c,
    max(canonical) filter (where code = 'total_cholesterol') as total_cholesterol,
    max(canonical) filter (where code = 'ldl') as ldl,
    max(canonical) filter (where code = 'hdl') as hdl,
    max(canonical) filter (where code = 'triglycerides') as triglycerides,
    max(canonical) filter (where code = 'creatinine') as creatinine,
    max(canonical) filter (where code = 'hemoglobin') as hemoglobin,
    max(canonical) filter (where code = 'vitamin_d') as vitamin_d,
    max(canonical) filter (where code = 'ferritin') as ferritin,
    max(canonical) filter (where code = 'tsh') as tsh,
    max(canonical) filter (where code = 'crp') as crp,
    max(canonical) filter (where code = 'systolic_bp') as systolic_bp,
    max(canonical) filter (where code = 'diastolic_bp') as diastolic_bp,
    max(canonical) filter (where code = 'weight_kg') as weight_kg,
    max(canonical) filter (where code = 'body_fat_percent') as body_fat_percent,
    max(canonical) filter (where code = 'non_hdl_cholesterol') as non_hdl_cholesterol,
    max(canonical) filter (where code = 'apolipoprotein_b') as apolipoprotein_b,
    max(canonical) filter (where code = 'lipoprotein_a') as lipoprotein_a,
    max(canonical) filter (where code = 'hs_crp') as hs_crp,
    max(canonical) filter (where code = 'homocysteine') as homocysteine,
    max(canonical) filter (where code = 'insulin') as insulin,
    max(canonical) filter (where code = 'egfr') as egfr,
    max(canonical) filter (where code = 'urea_nitrogen') as urea_nitrogen,
    max(canonical) filter (where code = 'uric_acid') as uric_acid,
    max(canonical) filter (where code = 'alt') as alt,
    max(canonical) filter (where code = 'ast') as ast,
    max(canonical) filter (where code = 'alp') as alp,
    max(canonical) filter (where code = 'ggt') as ggt,
    max(canonical) filter (where code = 'bilirubin') as bilirubin,
    max(canonical) filter (where code = 'albumin') as albumin,
    max(canonical) filter (where code = 'sodium') as sodium,
    max(canonical) filter (where code = 'potassium') as potassium,
    max(canonical) filter (where code = 'calcium') as calcium,
    max(canonical) filter (where code = 'magnesium') as magnesium,
    max(canonical) filter (where code = 'iron') as iron,
    max(canonical) filter (where code = 'vitamin_b12') as vitamin_b12,
    max(canonical) filter (where code = 'folate') as folate,
    max(canonical) filter (where code = 'free_t3') as free_t3,
    max(canonical) filter (where code = 'free_t4') as free_t4,
    max(canonical) filter (where code = 'testosterone') as testosterone,
    max(canonical) filter (where code = 'cortisol') as cortisol,
    max(canonical) filter (where code = 'hematocrit') as hematocrit,
    max(canonical) filter (where code = 'red_blood_cells') as red_blood_cells,
    max(canonical) filter (where code = 'white_blood_cells') as white_blood_cells,
    max(canonical) filter (where code = 'platelets') as platelets,
    count(*) filter (where value is not null and canonical is null) as unconverted,
    count(*) filter (where value is not null and has_no_unit) as without_unit
from converted
group by user_id, source, date;

comment on view biomarkers_wide is 'The biomarkers of a day side by side: those with a canonical code, as numbers in one unit for each column. Everything else is in biomarkers_raw.';
comment on column biomarkers_wide.user_id is 'Our user.';
comment on column biomarkers_wide.source is 'Where it was measured, as in biomarkers_raw.';
comment on column biomarkers_wide.date is 'The day, as in biomarkers_raw.';
comment on column biomarkers_wide.glucose is 'Glucose in the blood, fasting, in mg/dL.';
comment on column biomarkers_wide.hba1c is 'Glycated hemoglobin, in %.';
comment on column biomarkers_wide.total_cholesterol is 'Cholesterol, all of it, in mg/dL.';
comment on column biomarkers_wide.ldl is 'LDL cholesterol, in mg/dL.';
comment on column biomarkers_wide.hdl is 'HDL cholesterol, in mg/dL.';
comment on column biomarkers_wide.triglycerides is 'Triglycerides, in mg/dL.';
comment on column biomarkers_wide.creatinine is 'Creatinine in the blood, in mg/dL.';
comment on column biomarkers_wide.hemoglobin is 'Hemoglobin, in g/dL.';
comment on column biomarkers_wide.vitamin_d is 'Vitamin D, 25-hydroxy, in ng/mL.';
comment on column biomarkers_wide.ferritin is 'Ferritin, in ng/mL.';
comment on column biomarkers_wide.tsh is 'Thyroid-stimulating hormone, in mU/L.';
comment on column biomarkers_wide.crp is 'C-reactive protein, in mg/L.';
comment on column biomarkers_wide.systolic_bp is 'Systolic blood pressure, in mmHg.';
comment on column biomarkers_wide.diastolic_bp is 'Diastolic blood pressure, in mmHg.';
comment on column biomarkers_wide.weight_kg is 'Weight, in kg.';
comment on column biomarkers_wide.body_fat_percent is 'Body fat, in %.';
comment on column biomarkers_wide.non_hdl_cholesterol is 'Cholesterol that is not HDL, in mg/dL.';
comment on column biomarkers_wide.apolipoprotein_b is 'Apolipoprotein B, in mg/dL.';
comment on column biomarkers_wide.lipoprotein_a is 'Lipoprotein(a), in nmol/L.';
comment on column biomarkers_wide.hs_crp is 'C-reactive protein, high sensitivity, in mg/L.';
comment on column biomarkers_wide.homocysteine is 'Homocysteine, in umol/L.';
comment on column biomarkers_wide.insulin is 'Insulin, fasting, in uU/mL.';
comment on column biomarkers_wide.egfr is 'Estimated glomerular filtration rate, in mL/min/1.73m2.';
comment on column biomarkers_wide.urea_nitrogen is 'Urea nitrogen in the blood, in mg/dL.';
comment on column biomarkers_wide.uric_acid is 'Uric acid, in mg/dL.';
comment on column biomarkers_wide.alt is 'Alanine aminotransferase, in U/L.';
comment on column biomarkers_wide.ast is 'Aspartate aminotransferase, in U/L.';
comment on column biomarkers_wide.alp is 'Alkaline phosphatase, in U/L.';
comment on column biomarkers_wide.ggt is 'Gamma-glutamyl transferase, in U/L.';
comment on column biomarkers_wide.bilirubin is 'Bilirubin, all of it, in mg/dL.';
comment on column biomarkers_wide.albumin is 'Albumin in the blood, in g/dL.';
comment on column biomarkers_wide.sodium is 'Sodium, in mmol/L.';
comment on column biomarkers_wide.potassium is 'Potassium, in mmol/L.';
comment on column biomarkers_wide.calcium is 'Calcium, in mg/dL.';
comment on column biomarkers_wide.magnesium is 'Magnesium, in mg/dL.';
comment on column biomarkers_wide.iron is 'Iron, in ug/dL.';
comment on column biomarkers_wide.vitamin_b12 is 'Vitamin B12, in pg/mL.';
comment on column biomarkers_wide.folate is 'Folate, in ng/mL.';
comment on column biomarkers_wide.free_t3 is 'Free triiodothyronine, in pg/mL.';
comment on column biomarkers_wide.free_t4 is 'Free thyroxine, in ng/dL.';
comment on column biomarkers_wide.testosterone is 'Testosterone, all of it, in ng/dL.';
comment on column biomarkers_wide.cortisol is 'Cortisol, in ug/dL.';
comment on column biomarkers_wide.hematocrit is 'Hematocrit, in %.';
comment on column biomarkers_wide.red_blood_cells is 'Red blood cells, in 10^12/L.';
comment on column biomarkers_wide.white_blood_cells is 'White blood cells, in 10^9/L.';
comment on column biomarkers_wide.platelets is 'Platelets, in 10^9/L.';
comment on column biomarkers_wide.unconverted is 'Number of values of these codes that are only in biomarkers_raw, because their unit is unknown or not convertible.';
comment on column biomarkers_wide.without_unit is 'Number of values that were sent without a unit, and are taken to be in the column''s.';
