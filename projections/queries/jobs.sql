-- Jobs that have not ended, oldest first; without inputs, which may be large.
select workflow_name, instance_id, run_number, id, id::text as token_id, node_ref, task as type, status,
       attempts as attempt, worker, lease_until, next_retry_at, created_at, updated_at
from workflow_token
where completed_at is null
  and idempotency_token is not null {filter}
  and (created_at, workflow_name, instance_id, run_number, id) {beyond} (
      %(created_at)s::timestamptz, %(workflow_name)s::text collate "C",
      %(instance_id)s::text collate "C", %(run_number)s::integer, %(id)s::bigint
  )
  -- Excludes jobs of runs that were restarted.
  and exists (
      select 1
      from workflow_instance i
      where i.workflow_name = workflow_token.workflow_name
        and i.instance_id = workflow_token.instance_id
        and i.run_number = workflow_token.run_number
  )
order by created_at {order}, workflow_name {order}, instance_id {order}, run_number {order}, id {order}
limit %(limit)s
