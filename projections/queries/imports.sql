-- Requests of past data: what Terra answered, and what has come.

-- name: imports_of_user
-- The answer to a request is the result of its step. Deliveries of a request come within hours. Every
-- table is read once, not once for each request.
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
),
steps as (
    select distinct on (s.workflow_name, s.instance_id, s.name)
        s.workflow_name, s.instance_id, s.name, s.status, s.result, s.error_name
    from (select distinct workflow_name, instance_id from newest) as n
    join workflow_step s using (workflow_name, instance_id)
    order by s.workflow_name, s.instance_id, s.name, s.run_number desc
),
came as (
    select n.place, o.subject as terra_user_id, o.type, count(*) as deliveries,
           coalesce(sum(o.rows), 0)::bigint as rows, max(o.received_at) as last_delivery_at
    from (select distinct place, created_at from newest) as n
    join webhook_outcomes o
      on o.user_id = %(user_id)s
     and o.received_at >= n.created_at
     and o.received_at < n.created_at + interval '7 days'
    where o.type = any(%(types)s::text[])
    group by n.place, o.subject, o.type
),
span as (
    select min(until - days) as first_day, max(until) as last_day from newest
),
data as (
    select d.source as provider, t.type, d.datetime as day
    from daily_summary d
    cross join lateral (
        values
            ('daily', num_nonnulls(d.steps, d.active_zone_minutes, d.stress_management_score, d.strain) > 0),
            ('sleep', d.bed_time is not null)
    ) as t (type, has_data)
    where d.user_id = %(user_id)s and t.has_data
      and d.datetime >= (select first_day from span) and d.datetime < (select last_day from span)
    union
    select a.source, 'activity', (a.start_time at time zone 'UTC')::date
    from activities a
    where a.user_id = %(user_id)s
      and a.start_time >= (select first_day::timestamp at time zone 'UTC' from span)
      and a.start_time < (select last_day::timestamp at time zone 'UTC' from span)
    union
    select regexp_replace(b.source, '_body$', ''), 'body', b.date
    from biomarkers_raw b
    where b.user_id = %(user_id)s and b.source like '%%\_body'
      and b.date >= (select first_day from span) and b.date < (select last_day from span)
),
requests as (
    select n.*, lower(c.provider) as provider, t.type, t.number
    from newest n
    cross join unnest(%(types)s::text[]) with ordinality as t (type, number)
    left join terra_connections c using (terra_user_id)
),
counted as (
    select r.place, r.terra_user_id, r.type, count(*) as with_data
    from requests r
    join data d
      on d.provider = r.provider
     and d.type = r.type
     and d.day >= r.until - r.days
     and d.day < r.until
    group by r.place, r.terra_user_id, r.type
)
select
    r.workflow_name as workflow, r.instance_id as id, r.status, r.created_at as requested_at,
    r.until - r.days as first_day, r.until as last_day, r.terra_user_id, r.provider, r.type,
    case
        when s.status = 'completed' then s.result #>> '{}'
        when s.error_name = %(refused)s then 'refused'
        when s.status in ('errored', 'cancelled') then 'failed'
        else 'pending'
    end as answer,
    coalesce(came.deliveries, 0) as deliveries, coalesce(came.rows, 0) as rows,
    came.last_delivery_at, coalesce(counted.with_data, 0) as days_with_data,
    case
        when r.type in ('daily', 'sleep') then greatest(0, r.days - coalesce(counted.with_data, 0))
    end as missing_days
from requests r
left join steps s
  on s.workflow_name = r.workflow_name
 and s.instance_id = r.instance_id
 and s.name = r.type || ' ' || r.terra_user_id
left join came using (place, terra_user_id, type)
left join counted using (place, terra_user_id, type)
order by r.place, r.terra_user_id, r.number
