-- Jobs available to a worker: of these types and not reserved, longest waiting first. The first is
-- always returned; more follow up to the limits of jobs and of input bytes.
with candidate as (
    select job.*
    from (select distinct unnest(%(types)s::text[]) as type) requested
    -- One subquery per type, so that the index provides the order for any number of open jobs.
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
        where t.task = requested.type
          and t.status = 'dispatched'
          and t.idempotency_token is not null
          and concat_ws('.', t.workflow_name, t.instance_id, t.run_number, t.id, t.attempts)
              not in (select unnest(%(reserved)s::text[]))
        order by t.updated_at
        limit %(limit)s
    ) job
),
open_job as (
    select
        *,
        row_number() over waiting as rank,
        sum(octet_length(input)) over waiting as bytes
    from candidate
    window waiting as (order by updated_at, workflow_name, instance_id, id)
)
select
    workflow_name, instance_id, run_number, id::text as token_id, node_ref, task as type,
    attempts as attempt, input, idempotency_token
from open_job
where rank = 1 or (rank <= %(limit)s and bytes <= %(bytes)s)
order by rank
