-- Concurrency limits with holders and waiting runs. Of the keys of a limit, only those with the
-- most waiting runs are included; there may be one key per customer.
select known.name, known.concurrency,
       coalesce(sum(k.held), 0)::bigint as held, coalesce(sum(k.waiting), 0)::bigint as waiting,
       coalesce(
           jsonb_agg(
               jsonb_build_object(
                   'key', k.key, 'held', k.held, 'waiting', k.waiting,
                   'waiting_since', k.waiting_since
               )
               order by k.waiting desc, k.held desc, k.instance_id
           ) filter (where k.rank <= 20),
           '[]'
       ) as slots
from (
    select distinct on (name) name, concurrency
    from ({declared}) as declared
    order by name, since desc
) known
left join (
    select workflow_name, instance_id, min(key::text)::jsonb as key,
           count(granted_at) as held, count(*) - count(granted_at) as waiting,
           min(asked_at) filter (where granted_at is null) as waiting_since,
           row_number() over (
               partition by workflow_name
               order by count(*) - count(granted_at) desc, count(*) desc, instance_id
           ) as rank
    from workflow_slot
    group by workflow_name, instance_id
) k on k.workflow_name = known.name
where known.concurrency is not null
group by known.name, known.concurrency
