insert into workflow_token (
    workflow_name, instance_id, run_number, id, node_ref, task, subworkflow, status, path_id,
    parent_token_id, sibling_group, branch_index, branch_total, iteration_counts, attempts, input,
    result, error_name, error_message, error_detail, next_retry_at, wake_at, reason, retry_status,
    child_workflow_name, child_instance_id, idempotency_token, worker, lease_until, created_at,
    updated_at, completed_at, "offset"
)
select
    r.workflow_name, r.instance_id, r.run_number, r.id, r.node_ref, r.task, r.subworkflow, r.status,
    r.path_id, r.parent_token_id, r.sibling_group, r.branch_index, r.branch_total,
    r.iteration_counts::json, r.attempts, r.input::json, r.result::json, r.error_name,
    r.error_message, r.error_detail::json, to_timestamp(r.next_retry_at_ms / 1000),
    to_timestamp(r.wake_at_ms / 1000), r.reason, r.retry_status, r.child_workflow_name,
    r.child_instance_id, r.idempotency_token, r.worker, to_timestamp(r.lease_until_ms / 1000),
    to_timestamp(r.created_at_ms / 1000),
    to_timestamp(r.updated_at_ms / 1000), to_timestamp(r.completed_at_ms / 1000), r."offset"
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, id bigint, node_ref text, task text,
    subworkflow text, status text, path_id text, parent_token_id bigint, sibling_group text,
    branch_index integer, branch_total integer, iteration_counts text, attempts integer,
    input text, result text, error_name text, error_message text, error_detail text,
    next_retry_at_ms double precision, wake_at_ms double precision, reason text,
    retry_status text, child_workflow_name text, child_instance_id text,
    idempotency_token text, worker text, lease_until_ms double precision,
    created_at_ms double precision, updated_at_ms double precision,
    completed_at_ms double precision, "offset" bigint
)
on conflict do nothing
