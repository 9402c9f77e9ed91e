-- Each workflow has an index in the order of the page; for all workflows, each provides at most a
-- page.
select i.workflow_name, i.instance_id, i.run_number, i.status, i.output::text as output,
       i.error_name, i.error_message, i.deployment_id, i.labels, i.created_at, i.updated_at,
       to_jsonb(s) as current_step, t.current_tokens, l.awaited_slot
from (
    select one.*
    from ({workflows}) as known (name)
    cross join lateral (
        select *
        from workflow_instance
        where workflow_name = known.name {filter}
          and (created_at, workflow_name, instance_id) {beyond} (
              %(created_at)s::timestamptz,
              %(workflow_name)s::text collate "C",
              %(instance_id)s::text collate "C"
          )
        order by created_at {order}, instance_id {order}
        limit %(limit)s
    ) one
    order by one.created_at {order}, one.workflow_name {order}, one.instance_id {order}
    limit %(limit)s
) i
{current_step}order by i.created_at {order}, i.workflow_name {order}, i.instance_id {order}
