-- What a worker may be given now: of these types, the longest waiting first, but for those that are being
-- given away. As many as there is room for: the first in any case, and inputs of %(bytes)s bytes at most.
with open_job as (
    select
        t.workflow_name, t.instance_id, t.run_number, t.id, t.node_ref, t.task, t.attempts, t.input,
        t.idempotency_token,
        row_number() over waiting as place,
        sum(octet_length(t.input::text)) over waiting as bytes
    from workflow_token t
    join workflow_instance i
      on i.workflow_name = t.workflow_name
     and i.instance_id = t.instance_id
     and i.run_number = t.run_number
     and i.status <> 'paused'
    where t.status = 'dispatched'
      and t.idempotency_token is not null
      and t.task = any(%(types)s::text[])
      and concat_ws('.', t.workflow_name, t.instance_id, t.run_number, t.id, t.attempts)
          <> all(%(given)s::text[])
    window waiting as (order by t.updated_at, t.workflow_name, t.instance_id, t.id)
    order by place
    limit %(limit)s
)
select
    workflow_name, instance_id, run_number, id::text as token_id, node_ref, task as type,
    attempts as attempt, input::text as input, idempotency_token
from open_job
where place = 1 or bytes <= %(bytes)s
order by place
