-- What a worker may be given now: of these types, the longest waiting first, but for those that are being
-- given away. As many as there is room for: the first in any case, and inputs of %(bytes)s bytes at most.
with candidate as (
    select found.*
    from (select distinct unnest(%(types)s::text[]) as type) wanted
    -- Each type for itself: so the index has them in their order, however many are open.
    cross join lateral (
        select
            t.workflow_name, t.instance_id, t.run_number, t.id, t.node_ref, t.task, t.attempts,
            t.input::text as input, t.idempotency_token, t.updated_at
        from workflow_token t
        join workflow_instance i
          on i.workflow_name = t.workflow_name
         and i.instance_id = t.instance_id
         and i.run_number = t.run_number
         and i.status <> 'paused'
        where t.task = wanted.type
          and t.status = 'dispatched'
          and t.idempotency_token is not null
          and concat_ws('.', t.workflow_name, t.instance_id, t.run_number, t.id, t.attempts)
              not in (select unnest(%(reserved)s::text[]))
        order by t.updated_at
        limit %(limit)s
    ) found
),
open_job as (
    select
        *,
        row_number() over waiting as place,
        sum(octet_length(input)) over waiting as bytes
    from candidate
    window waiting as (order by updated_at, workflow_name, instance_id, id)
)
select
    workflow_name, instance_id, run_number, id::text as token_id, node_ref, task as type,
    attempts as attempt, input, idempotency_token
from open_job
where place = 1 or (place <= %(limit)s and bytes <= %(bytes)s)
order by place
