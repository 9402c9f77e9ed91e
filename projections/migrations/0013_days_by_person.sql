-- Days of a person, from all of their wearables.

-- For all persons of some days.
create index daily_summary_days on daily_summary (datetime);

create function daily_summary_by_person_with(day_sources text[], night_sources text[])
    returns table (
        user_id text,
        datetime date,
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
        sources jsonb
    )
    language sql stable
begin atomic
    select
        d.user_id,
        d.datetime,
        steps,
        resting_heart_rate,
        heart_rate_variability,
        active_zone_minutes,
        case when active_zone_minutes is not null then fatburn_active_zone_minutes end,
        case when active_zone_minutes is not null then cardio_active_zone_minutes end,
        case when active_zone_minutes is not null then peak_active_zone_minutes end,
        stress_management_score,
        strain,
        recovery_score,
        sleep_score,
        case when bed_time is not null then sleep_minutes end,
        bed_time,
        case when bed_time is not null then wake_up_time end,
        case when bed_time is not null then deep_sleep_minutes end,
        case when bed_time is not null then rem_sleep_minutes end,
        case when bed_time is not null then light_sleep_minutes end,
        case when bed_time is not null then awake_minutes end,
        case when bed_time is not null then deep_sleep_percent end,
        case when bed_time is not null then rem_sleep_percent end,
        case when bed_time is not null then light_sleep_percent end,
        case when bed_time is not null then awake_percent end,
        case when bed_time is not null then spo2 end,
        case when bed_time is not null then respiratory_rate end,
        case when bed_time is not null then skin_temperature end,
        utc_offset_minutes,
        jsonb_strip_nulls(jsonb_build_object(
            'steps', case when steps is not null then source end,
            'resting_heart_rate', case when resting_heart_rate is not null then source end,
            'heart_rate_variability', case when heart_rate_variability is not null then source end,
            'active_zone_minutes', case when active_zone_minutes is not null then source end,
            'stress_management_score', case when stress_management_score is not null then source end,
            'strain', case when strain is not null then source end,
            'recovery_score', case when recovery_score is not null then source end,
            'sleep_score', case when sleep_score is not null then source end,
            'night', case when bed_time is not null then source end
        ))
    from daily_summary d
    where not exists (select from daily_summary o where o.user_id = d.user_id and o.datetime = d.datetime and o.source <> d.source)
    union all
    select
        d.user_id,
        d.datetime,
        (array_agg(steps order by day_rank, source) filter (where steps is not null))[1],
        (array_agg(resting_heart_rate order by night_rank, source) filter (where resting_heart_rate is not null))[1],
        (array_agg(heart_rate_variability order by night_rank, source) filter (where heart_rate_variability is not null))[1],
        (array_agg(active_zone_minutes order by day_rank, source) filter (where active_zone_minutes is not null))[1],
        (array_agg(fatburn_active_zone_minutes order by day_rank, source) filter (where active_zone_minutes is not null))[1],
        (array_agg(cardio_active_zone_minutes order by day_rank, source) filter (where active_zone_minutes is not null))[1],
        (array_agg(peak_active_zone_minutes order by day_rank, source) filter (where active_zone_minutes is not null))[1],
        (array_agg(stress_management_score order by day_rank, source) filter (where stress_management_score is not null))[1],
        (array_agg(strain order by day_rank, source) filter (where strain is not null))[1],
        (array_agg(recovery_score order by night_rank, source) filter (where recovery_score is not null))[1],
        (array_agg(sleep_score order by night_rank, source) filter (where sleep_score is not null))[1],
        (array_agg(sleep_minutes order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(bed_time order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(wake_up_time order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(deep_sleep_minutes order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(rem_sleep_minutes order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(light_sleep_minutes order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(awake_minutes order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(deep_sleep_percent order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(rem_sleep_percent order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(light_sleep_percent order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(awake_percent order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(spo2 order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(respiratory_rate order by night_rank, source) filter (where bed_time is not null))[1],
        (array_agg(skin_temperature order by night_rank, source) filter (where bed_time is not null))[1],
        coalesce((array_agg(utc_offset_minutes order by night_rank, source) filter (where bed_time is not null))[1], (array_agg(utc_offset_minutes order by day_rank, source) filter (where utc_offset_minutes is not null))[1]),
        jsonb_strip_nulls(jsonb_build_object(
            'steps', (array_agg(source order by day_rank, source) filter (where steps is not null))[1],
            'resting_heart_rate', (array_agg(source order by night_rank, source) filter (where resting_heart_rate is not null))[1],
            'heart_rate_variability', (array_agg(source order by night_rank, source) filter (where heart_rate_variability is not null))[1],
            'active_zone_minutes', (array_agg(source order by day_rank, source) filter (where active_zone_minutes is not null))[1],
            'stress_management_score', (array_agg(source order by day_rank, source) filter (where stress_management_score is not null))[1],
            'strain', (array_agg(source order by day_rank, source) filter (where strain is not null))[1],
            'recovery_score', (array_agg(source order by night_rank, source) filter (where recovery_score is not null))[1],
            'sleep_score', (array_agg(source order by night_rank, source) filter (where sleep_score is not null))[1],
            'night', (array_agg(source order by night_rank, source) filter (where bed_time is not null))[1]
        ))
    from (
        select *,
            coalesce(array_position(day_sources, d.source), 1000) as day_rank,
            coalesce(array_position(night_sources, d.source), 1000) as night_rank
        from daily_summary d
        where exists (select from daily_summary o where o.user_id = d.user_id and o.datetime = d.datetime and o.source <> d.source)
    ) as d
    group by d.user_id, d.datetime;
end;

create view daily_summary_by_person as
select *
from daily_summary_by_person_with(array['garmin', 'fitbit', 'polar', 'oura', 'whoop'], array['oura', 'whoop', 'garmin', 'fitbit', 'polar']);

comment on function daily_summary_by_person_with(text[], text[]) is
    'As the view daily_summary_by_person, with other sources first: of days, and of nights. Sources that are not listed follow by name.';
comment on view daily_summary_by_person is
    'A person''s day, of all wearables together. All columns of the night are of one source, and so are the minutes in zones; every other column is of the first source that has it. The order of sources is garmin, fitbit, polar, oura, whoop, then by name; for the night, resting heart rate, variability, recovery and sleep score oura, whoop, garmin, fitbit, polar, then by name. For another order: select * from daily_summary_by_person_with(array[''fitbit''], array[''oura'']).';
comment on column daily_summary_by_person.user_id is 'User id.';
comment on column daily_summary_by_person.datetime is 'The day, YYYY-MM-DD, in the record''s own time zone.';
comment on column daily_summary_by_person.steps is 'Steps walked.';
comment on column daily_summary_by_person.resting_heart_rate is 'Beats per minute; of the main sleep that ended on this day if it has one, else of the day.';
comment on column daily_summary_by_person.heart_rate_variability is 'RMSSD in milliseconds; of the main sleep if it has one, else of the day.';
comment on column daily_summary_by_person.active_zone_minutes is 'Minutes of low, moderate and vigorous activity together.';
comment on column daily_summary_by_person.fatburn_active_zone_minutes is 'Minutes of low intensity.';
comment on column daily_summary_by_person.cardio_active_zone_minutes is 'Minutes of moderate intensity.';
comment on column daily_summary_by_person.peak_active_zone_minutes is 'Minutes of vigorous intensity.';
comment on column daily_summary_by_person.stress_management_score is 'Average stress level, 0 to 100.';
comment on column daily_summary_by_person.strain is 'Strain (Whoop: 0 to 21).';
comment on column daily_summary_by_person.recovery_score is 'Recovery, 0 to 100, of the main sleep, else of the day; Whoop''s readiness if it has none.';
comment on column daily_summary_by_person.sleep_score is 'Sleep score, 0 to 100, of the main sleep; of the day if no sleep is known.';
comment on column daily_summary_by_person.sleep_minutes is 'Minutes asleep, of the main sleep: the longest that ended on this day and is not a nap.';
comment on column daily_summary_by_person.bed_time is 'Start of that sleep; local time is utc_offset_minutes later.';
comment on column daily_summary_by_person.wake_up_time is 'End of that sleep; local time is utc_offset_minutes later.';
comment on column daily_summary_by_person.deep_sleep_minutes is 'Minutes of deep sleep.';
comment on column daily_summary_by_person.rem_sleep_minutes is 'Minutes of REM sleep.';
comment on column daily_summary_by_person.light_sleep_minutes is 'Minutes of light sleep.';
comment on column daily_summary_by_person.awake_minutes is 'Minutes awake during that sleep.';
comment on column daily_summary_by_person.deep_sleep_percent is 'Deep sleep as a percentage of asleep and awake time together.';
comment on column daily_summary_by_person.rem_sleep_percent is 'REM sleep as a percentage of asleep and awake time together.';
comment on column daily_summary_by_person.light_sleep_percent is 'Light sleep as a percentage of asleep and awake time together.';
comment on column daily_summary_by_person.awake_percent is 'Awake time as a percentage of asleep and awake time together.';
comment on column daily_summary_by_person.spo2 is 'Average blood oxygen saturation, percent.';
comment on column daily_summary_by_person.respiratory_rate is 'Average breaths per minute.';
comment on column daily_summary_by_person.skin_temperature is 'Deviation from the wearer''s baseline, degrees Celsius.';
comment on column daily_summary_by_person.utc_offset_minutes is 'Offset from UTC in minutes: at the end of the main sleep, else at the beginning of the day.';
comment on column daily_summary_by_person.sources is 'Source of every column that is not null: {column: source}. The columns of the night are under night, the minutes of all zones under active_zone_minutes.';
