-- Requests of past data: what Terra answered, and what has come.

-- name: imports_of_user
-- The answer to a request is the result of its step. Deliveries of a request come within hours.
with requested as (
    select i.workflow_name, i.instance_id, i.status, i.created_at, c.terra_user_id,
           (i.params ->> 'until')::date as until, (i.params ->> 'days')::integer as days
    from workflow_instance i
    cross join lateral json_array_elements_text(i.params -> 'connections') as c (terra_user_id)
    where i.workflow_name = %(imports)s and i.labels @> %(labels)s::jsonb
    union all
    select i.workflow_name, i.instance_id, i.status, i.created_at, c.terra_user_id,
           (i.params ->> 'until')::date, %(backfill_days)s::integer
    from terra_connections c
    join workflow_instance i
      on i.workflow_name = %(backfills)s
     and i.instance_id >= c.terra_user_id || '-'
     and i.instance_id < c.terra_user_id || '.'
    where c.user_id = %(user_id)s
      and i.params ->> 'terra_user_id' = c.terra_user_id
      and i.params ->> 'user_id' = %(user_id)s
),
newest as (
    select *
    from (
        select *, dense_rank() over (order by created_at desc, workflow_name, instance_id) as place
        from requested
    ) as ranked
    where place <= %(limit)s::integer
)
select
    n.workflow_name as workflow, n.instance_id as id, n.status, n.created_at as requested_at,
    n.until - n.days as first_day, n.until as last_day,
    n.terra_user_id, lower(c.provider) as provider, t.type,
    case
        when s.status = 'completed' then s.result #>> '{}'
        when s.error_name = %(refused)s then 'refused'
        when s.status in ('errored', 'cancelled') then 'failed'
        else 'pending'
    end as answer,
    came.deliveries, came.rows, came.last_delivery_at, days.with_data as days_with_data,
    case when t.type in ('daily', 'sleep') then greatest(0, n.days - days.with_data) end as missing_days
from newest n
cross join unnest(%(types)s::text[]) with ordinality as t (type, number)
left join terra_connections c on c.terra_user_id = n.terra_user_id
left join lateral (
    select step.status, step.result, step.error_name
    from workflow_step step
    where step.workflow_name = n.workflow_name
      and step.instance_id = n.instance_id
      and step.name = t.type || ' ' || n.terra_user_id
    order by step.run_number desc
    limit 1
) as s on true
cross join lateral (
    select count(*) as deliveries, coalesce(sum(o.rows), 0)::bigint as rows,
           max(o.received_at) as last_delivery_at
    from webhook_outcomes o
    where o.user_id = %(user_id)s
      and o.subject = n.terra_user_id
      and o.type = t.type
      and o.received_at >= n.created_at
      and o.received_at < n.created_at + interval '7 days'
) as came
cross join lateral (
    select case t.type
        when 'daily' then (
            select count(*)
            from daily_summary d
            where d.user_id = %(user_id)s and d.source = lower(c.provider)
              and d.datetime >= n.until - n.days and d.datetime < n.until
              and num_nonnulls(d.steps, d.active_zone_minutes, d.stress_management_score, d.strain) > 0
        )
        when 'sleep' then (
            select count(*)
            from daily_summary d
            where d.user_id = %(user_id)s and d.source = lower(c.provider)
              and d.datetime >= n.until - n.days and d.datetime < n.until
              and d.bed_time is not null
        )
        when 'activity' then (
            select count(distinct (a.start_time at time zone 'UTC')::date)
            from activities a
            where a.user_id = %(user_id)s and a.source = lower(c.provider)
              and a.start_time >= (n.until - n.days)::timestamp at time zone 'UTC'
              and a.start_time < n.until::timestamp at time zone 'UTC'
        )
        else (
            select count(distinct b.date)
            from biomarkers_raw b
            where b.user_id = %(user_id)s and b.source = lower(c.provider) || '_body'
              and b.date >= n.until - n.days and b.date < n.until
        )
    end as with_data
) as days
order by n.place, n.terra_user_id, t.number
