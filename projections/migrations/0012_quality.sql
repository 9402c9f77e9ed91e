-- Quality of the data by week: what came, what could not be used, and what is missing.
-- Its functions read tables that analysts cannot, and return numbers.

create function data_quality_since(first_week date)
    returns table (
        week date,
        source text,
        provider text,
        deliveries bigint,
        processed bigint,
        skipped bigint,
        parked bigint,
        dead bigint,
        duplicates bigint,
        rows bigint,
        rejected_records bigint,
        rejected_values bigint,
        late_days bigint,
        missing_days bigint
    )
    language sql stable security definer
begin atomic
    with outcomes as (
        select
            date_trunc('week', o.received_at at time zone 'UTC')::date as week,
            o.event_id,
            o.source,
            coalesce(lower(c.provider), '') as provider,
            o.status,
            o.rows,
            o.rejected,
            o.rejected_fields_total
        from webhook_outcomes o
        left join terra_connections c on c.terra_user_id = o.subject
        where o.received_at >= first_week::timestamp at time zone 'UTC'
    ),
    copies as (
        select d.event_id, d.received_at as at
        from duplicates d
        where d.received_at >= first_week::timestamp at time zone 'UTC'
        union all
        select a.event_id, a.at
        from request_answers a
        where a.code = 'duplicate' and a.at >= first_week::timestamp at time zone 'UTC'
    ),
    -- A day counts once for every week in which a late delivery set a value of it. Older days come
    -- from imports. The first condition on updated_at spares reading the sources of most days.
    late as (
        select distinct
            date_trunc('week', (s.delivery ->> 'sent_at')::timestamptz at time zone 'UTC')::date as week,
            coalesce(o.source, 'terra') as source,
            d.source as provider,
            d.user_id,
            d.datetime
        from daily_summary d
        cross join lateral json_array_elements(d.column_sources -> 'deliveries') as s (delivery)
        left join webhook_outcomes o on o.event_id = s.delivery ->> 'event_id'
        where d.updated_at at time zone 'UTC' >= d.datetime + 4
          and d.updated_at >= first_week::timestamp at time zone 'UTC'
          and d.datetime >= first_week - 28
          and (s.delivery ->> 'sent_at')::timestamptz >= first_week::timestamp at time zone 'UTC'
          and (s.delivery ->> 'sent_at')::timestamptz at time zone 'UTC' >= d.datetime + 4
          and (s.delivery ->> 'sent_at')::timestamptz at time zone 'UTC' < d.datetime + 29
    ),
    -- A user may have several connections to one maker.
    open_connections as materialized (
        select
            coalesce(nullif(o.source, 'headwater'), 'terra') as source,
            lower(c.provider) as provider,
            c.user_id,
            greatest(first_week, min((v.sent_at at time zone 'UTC')::date) + 1) as first_day
        from terra_connections c
        cross join lateral value_source(c.column_sources, 'active') as v
        left join webhook_outcomes o on o.event_id = v.event_id
        where c.active and c.user_id is not null and c.provider is not null
        group by 1, 2, 3
    ),
    -- A wearable may send a day until the second day after it.
    expected as (
        select
            w.monday::date as week,
            c.source,
            c.provider,
            sum(least(w.monday::date + 6, last.day) - greatest(w.monday::date, c.first_day) + 1) as days
        from open_connections c
        cross join (select (now() at time zone 'UTC')::date - 2) as last (day)
        cross join lateral generate_series(
            date_trunc('week', c.first_day::timestamp), last.day::timestamp, interval '1 week'
        ) as w (monday)
        where c.first_day <= last.day
        group by 1, 2, 3
    ),
    present as (
        select date_trunc('week', d.datetime::timestamp)::date as week, c.source, c.provider, count(*) as days
        from open_connections c
        join daily_summary d
          on d.user_id = c.user_id
         and d.source = c.provider
         and d.datetime >= c.first_day
        where d.datetime between first_week and (now() at time zone 'UTC')::date - 2
        group by 1, 2, 3
    ),
    -- Counted before the union, because sorting millions of deliveries takes longer than all else.
    counted as (
        select
            o.week, o.source, o.provider, count(*) as deliveries,
            count(*) filter (where o.status = 'processed') as processed,
            count(*) filter (where o.status = 'skipped') as skipped,
            count(*) filter (where o.status = 'parked') as parked,
            count(*) filter (where o.status = 'dead') as dead,
            0 as duplicates, sum(o.rows) as rows, sum(o.rejected) as rejected_records,
            sum(o.rejected_fields_total) as rejected_values, 0 as late_days, 0 as missing_days
        from outcomes o
        group by o.week, o.source, o.provider
        union all
        select
            date_trunc('week', copies.at at time zone 'UTC')::date, o.source,
            coalesce(lower(c.provider), ''), 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0
        from copies
        join webhook_outcomes o using (event_id)
        left join terra_connections c on c.terra_user_id = o.subject
        union all
        select late.week, late.source, late.provider, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0
        from late
        union all
        select e.week, e.source, e.provider, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, e.days - coalesce(p.days, 0)
        from expected e
        left join present p using (week, source, provider)
        where e.days > coalesce(p.days, 0)
    )
    select
        c.week,
        c.source,
        c.provider,
        sum(c.deliveries),
        sum(c.processed),
        sum(c.skipped),
        sum(c.parked),
        sum(c.dead),
        sum(c.duplicates),
        sum(c.rows),
        sum(c.rejected_records),
        sum(c.rejected_values),
        sum(c.late_days),
        sum(c.missing_days)
    from counted c
    group by c.week, c.source, c.provider;
end;

comment on function data_quality_since(date) is
    'As the view data_quality, since a Monday.';

create view data_quality as
select *
from data_quality_since(date_trunc('week', now() at time zone 'UTC')::date - 12 * 7);

comment on view data_quality is
    'What came by week, source and provider, what could not be used, and what is missing; the last 13 weeks. For more: select * from data_quality_since(''2026-01-05'').';
comment on column data_quality.week is 'Its Monday, in UTC.';
comment on column data_quality.source is 'The source, for example terra.';
comment on column data_quality.provider is
    'The wearable''s maker, lower case, for example garmin; empty if the delivery names no connection.';
comment on column data_quality.deliveries is 'Deliveries received in the week, without duplicates.';
comment on column data_quality.processed is 'Of these, those that were processed.';
comment on column data_quality.skipped is 'Of these, those that were skipped, because of their type.';
comment on column data_quality.parked is 'Of these, those that wait.';
comment on column data_quality.dead is 'Of these, those that are dead letters.';
comment on column data_quality.duplicates is
    'Further copies of deliveries, which were dropped.';
comment on column data_quality.rows is 'Rows that the deliveries set values of.';
comment on column data_quality.rejected_records is
    'Records of the deliveries that were rejected as a whole.';
comment on column data_quality.rejected_values is
    'Single values that were dropped; rejected_values has their fields and reasons.';
comment on column data_quality.late_days is
    'Rows of daily_summary with values of deliveries that were sent more than three days and at most four weeks after their day; older days come from imports. The nightly reconcile requests the last week again, and days that it renews count, too.';
comment on column data_quality.missing_days is
    'Days of this week without a row in daily_summary, of connections that are active now, from the day after they became active until the day before yesterday.';

create function rejected_values_since(first_week date)
    returns table (
        week date,
        source text,
        provider text,
        field text,
        reason text,
        number bigint
    )
    language sql stable security definer
begin atomic
    select
        date_trunc('week', o.received_at at time zone 'UTC')::date,
        o.source,
        coalesce(lower(c.provider), ''),
        regexp_replace(f.path, '\[\d+\]', '[]', 'g'),
        f.reason,
        sum(f.count)
    from webhook_outcomes o
    cross join lateral jsonb_to_recordset(o.rejected_fields) as f (path text, reason text, count bigint)
    left join terra_connections c on c.terra_user_id = o.subject
    where o.received_at >= first_week::timestamp at time zone 'UTC'
      and o.rejected_fields_total > 0
    group by 1, 2, 3, 4, 5;
end;

comment on function rejected_values_since(date) is
    'As the view rejected_values, since a Monday.';

create view rejected_values as
select *
from rejected_values_since(date_trunc('week', now() at time zone 'UTC')::date - 12 * 7);

comment on view rejected_values is
    'Single values that were dropped, by week, source, provider, field and reason; the last 13 weeks. At most 50 fields of a delivery are listed. For more: select * from rejected_values_since(''2026-01-05'').';
comment on column rejected_values.week is 'Its Monday, in UTC.';
comment on column rejected_values.source is 'The source, for example terra.';
comment on column rejected_values.provider is
    'The wearable''s maker, lower case; empty if the delivery names no connection.';
comment on column rejected_values.field is 'Path of the field, without positions in lists.';
comment on column rejected_values.reason is 'not_measured, out_of_range or wrong_type.';
comment on column rejected_values.number is 'Number of values.';

create function skipped_deliveries_since(first_week date)
    returns table (
        week date,
        source text,
        provider text,
        type text,
        reason text,
        number bigint
    )
    language sql stable
begin atomic
    select
        date_trunc('week', o.received_at at time zone 'UTC')::date,
        o.source,
        coalesce(lower(c.provider), ''),
        o.type,
        o.reason,
        count(*)
    from webhook_outcomes o
    left join terra_connections c on c.terra_user_id = o.subject
    where o.received_at >= first_week::timestamp at time zone 'UTC' and o.status = 'skipped'
    group by 1, 2, 3, 4, 5;
end;

comment on function skipped_deliveries_since(date) is
    'As the view skipped_deliveries, since a Monday.';

create view skipped_deliveries as
select *
from skipped_deliveries_since(date_trunc('week', now() at time zone 'UTC')::date - 12 * 7);

comment on view skipped_deliveries is
    'Deliveries that were received and not stored as rows, by week, source, provider, type and reason; the last 13 weeks. For more: select * from skipped_deliveries_since(''2026-01-05'').';
comment on column skipped_deliveries.week is 'Its Monday, in UTC.';
comment on column skipped_deliveries.source is 'The source, for example terra.';
comment on column skipped_deliveries.provider is
    'The wearable''s maker, lower case; empty if the delivery names no connection.';
comment on column skipped_deliveries.type is 'The source''s event type.';
comment on column skipped_deliveries.reason is
    'Why it was skipped, for example nutrition or empty_data.';
comment on column skipped_deliveries.number is 'Number of deliveries.';

-- Active connections: what came last, and whether they are silent.

-- As configured in the file of sources; gateways write it when they start.
create table silence_limits (
    source text not null,
    provider text not null,
    days integer not null,
    primary key (source, provider)
);

comment on table silence_limits is
    'Days without new data after which a connection is silent: silent_after_days of the file of sources.';
comment on column silence_limits.source is 'The source.';
comment on column silence_limits.provider is
    'The wearable''s maker, lower case, or default for all others.';
comment on column silence_limits.days is 'Number of days.';

create view connection_activity as
select
    c.terra_user_id,
    c.user_id,
    lower(c.provider) as provider,
    case
        when failure.at is not null then 'failing'
        when silence.days >= silence_limit.days then 'silent'
        else 'receiving'
    end as state,
    opened.sent_at as connected_at,
    data.at as last_delivery_at,
    latest.day as last_day,
    silence.days as silent_days,
    failure.at as failing_since,
    origin.source,
    silence_limit.days as silent_after_days
from terra_connections c
cross join lateral value_source(c.column_sources, 'active') as opened
left join lateral (
    select o.received_at as at, o.source
    from webhook_outcomes o
    where o.user_id = c.user_id
      and o.subject = c.terra_user_id
      and o.status = 'processed'
      and o.type in ('activity', 'body', 'daily', 'sleep')
    order by o.received_at desc
    limit 1
) as data on true
-- Errors have no user if they name none that is known.
cross join lateral (
    select min(o.received_at) as at
    from webhook_outcomes o
    where o.subject = c.terra_user_id
      and o.type = 'connection_error'
      and o.received_at > greatest(data.at, opened.sent_at)
) as failure
cross join lateral (
    select greatest(
        (select max(d.datetime) from daily_summary d
         where d.user_id = c.user_id and d.source = lower(c.provider)),
        (select (max(a.start_time) at time zone 'UTC')::date from activities a
         where a.user_id = c.user_id and a.source = lower(c.provider)),
        (select max(b.date) from biomarkers_raw b
         where b.user_id = c.user_id and b.source = lower(c.provider) || '_body')
    ) as day
    -- Otherwise it would be computed for each mention of it.
    offset 0
) as latest
cross join lateral (
    select greatest(
        0,
        (now() at time zone 'UTC')::date
            - greatest(latest.day, (opened.sent_at at time zone 'UTC')::date)
    ) as days
) as silence
-- The source that last brought data, else that of the connection; Terra's list is of no source.
cross join lateral (
    select coalesce(
        data.source,
        (select nullif(o.source, 'headwater') from webhook_outcomes o where o.event_id = opened.event_id),
        'terra'
    ) as source
    offset 0
) as origin
cross join lateral (
    select coalesce(
        (
            select l.days
            from silence_limits l
            where l.source = origin.source and l.provider in (lower(c.provider), 'default')
            order by l.provider = 'default'
            limit 1
        ),
        3
    ) as days
    offset 0
) as silence_limit
where c.active and c.user_id is not null and c.provider is not null;

comment on view connection_activity is
    'Every active connection: what came last, and whether it is silent or failing.';
comment on column connection_activity.terra_user_id is 'Terra''s id of the connection.';
comment on column connection_activity.user_id is 'User id.';
comment on column connection_activity.provider is 'The wearable''s maker, lower case.';
comment on column connection_activity.state is
    'receiving; silent if silent_days is at least silent_after_days; failing if Terra has reported an error of the connection (connection_error) since the last data, so that the user may have to connect again.';
comment on column connection_activity.connected_at is
    'When the delivery that last reported it active was sent.';
comment on column connection_activity.last_delivery_at is
    'When the last delivery with data (activity, body, daily or sleep) was received; null if none was.';
comment on column connection_activity.last_day is
    'The newest day with data of this user and provider; null without any.';
comment on column connection_activity.silent_days is
    'Days from the newest day with data, or from the connection if that is later, until today in UTC.';
comment on column connection_activity.failing_since is
    'When the first connection_error after the last data was received; null without one.';
comment on column connection_activity.source is
    'The source that last brought data of it, else the one that reported the connection.';
comment on column connection_activity.silent_after_days is
    'Setting of the source for this maker, or its default; 3 without any.';
