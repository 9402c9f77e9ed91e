select workflow_name, instance_id, run_number,
       id, node_ref, task, subworkflow, status, path_id, parent_token_id, sibling_group, branch_index,
       branch_total, iteration_counts, attempts, input::text as input, result::text as result,
       error_name, error_message, error_detail::text as error_detail, next_retry_at, wake_at, reason,
       child_workflow_name, child_instance_id, created_at, updated_at, completed_at, worker, lease_until
from workflow_token
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s
  and id {beyond} %(id)s::bigint
order by id {order}
limit %(limit)s
