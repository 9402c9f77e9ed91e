-- Begins runs: the row of the previous run moves to workflow_run. A retry continues that run and
-- keeps its start.
with started as materialized (
    select * from json_to_recordset(%(rows)s::json) as r (
        workflow_name text, instance_id text, run_number integer, status text, params text,
        output text, error_name text, error_message text, error_detail text,
        parent_workflow_name text, parent_instance_id text, parent_run_number integer,
        parent_step_key text, deployment_id text, labels jsonb, started_at_ms double precision,
        completed_at_ms double precision, retention_until_ms double precision,
        updated_at_ms double precision, partition integer, run_offset bigint, "offset" bigint,
        retries boolean
    )
),
superseded as (
    insert into workflow_run (
        workflow_name, instance_id, run_number, status, params, output, error_name, error_message,
        error_detail, parent_workflow_name, parent_instance_id, parent_run_number, parent_step_key,
        deployment_id, updated_at, started_at, completed_at, partition, run_offset,
        "offset"
    )
    select
        i.workflow_name, i.instance_id, i.run_number, i.status, i.params, i.output, i.error_name,
        i.error_message, i.error_detail, i.parent_workflow_name, i.parent_instance_id,
        i.parent_run_number, i.parent_step_key, i.deployment_id, i.updated_at, i.started_at, i.completed_at,
        i.partition, i.run_offset, i."offset"
    from started r
    join workflow_instance i
      on i.workflow_name = r.workflow_name and i.instance_id = r.instance_id
    where r.run_number > 0 and r.run_number > i.run_number
    on conflict do nothing
)
insert into workflow_instance (
    workflow_name, instance_id, run_number, status, params, output, error_name, error_message,
    error_detail, parent_workflow_name, parent_instance_id, parent_run_number, parent_step_key,
    deployment_id, labels, created_at, updated_at, started_at, completed_at, retention_until, partition, run_offset,
    "offset"
)
select
    r.workflow_name, r.instance_id, r.run_number, r.status, r.params::json, r.output::json,
    r.error_name, r.error_message, r.error_detail::json, r.parent_workflow_name,
    r.parent_instance_id, r.parent_run_number, r.parent_step_key, r.deployment_id,
    coalesce(r.labels, '{}'),
    to_timestamp(r.started_at_ms / 1000), to_timestamp(r.updated_at_ms / 1000),
    coalesce(
        case when r.retries then (
            select i.started_at
            from workflow_instance i
            where i.workflow_name = r.workflow_name and i.instance_id = r.instance_id
        ) end,
        to_timestamp(r.started_at_ms / 1000)
    ),
    to_timestamp(r.completed_at_ms / 1000), to_timestamp(r.retention_until_ms / 1000), r.partition, r.run_offset, r."offset"
from started r
on conflict (workflow_name, instance_id) do update set
    run_number = excluded.run_number,
    status = excluded.status,
    params = excluded.params,
    output = excluded.output,
    error_name = excluded.error_name,
    error_message = excluded.error_message,
    error_detail = excluded.error_detail,
    parent_workflow_name = excluded.parent_workflow_name,
    parent_instance_id = excluded.parent_instance_id,
    parent_run_number = excluded.parent_run_number,
    parent_step_key = excluded.parent_step_key,
    deployment_id = excluded.deployment_id,
    labels = excluded.labels,
    updated_at = excluded.updated_at,
    started_at = excluded.started_at,
    completed_at = excluded.completed_at,
    retention_until = excluded.retention_until,
    partition = excluded.partition,
    run_offset = excluded.run_offset,
    "offset" = excluded."offset"
