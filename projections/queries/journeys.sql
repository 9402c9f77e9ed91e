select
    (o.journey).status, (o.journey).reason, (o.journey).rows, (o.journey).rejected,
    (o.journey).at, (o.journey).position, coalesce((o.journey).replay, '') as replay,
    journey_hops(o.journey) as hops
from webhook_outcomes newest,
    lateral (
        select e
        from jsonb_populate_recordset(null::webhook_outcomes, coalesce(newest.earlier, '[]')) as e
        union all
        select newest
    ) as o (journey)
where newest.event_id = %(event_id)s
order by (o.journey).at
