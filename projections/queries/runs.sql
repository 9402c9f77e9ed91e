-- Like the listing of instances, without large columns. A run that waits for a slot has not begun.
select i.workflow_name, i.instance_id, i.status, i.error_name, i.error_message, i.deployment_id,
       i.created_at, i.started_at, i.updated_at, i.completed_at, {waits} as waits
from (
    select one.*
    from ({workflows}) as known (name)
    cross join lateral (
        select *
        from workflow_instance i
        where workflow_name = known.name {filter}
          and (created_at, workflow_name, instance_id) < (
              %(created_at)s::timestamptz,
              %(workflow_name)s::text collate "C",
              %(instance_id)s::text collate "C"
          )
        order by created_at desc, instance_id desc
        limit %(limit)s
    ) one
    order by one.created_at desc, one.workflow_name desc, one.instance_id desc
    limit %(limit)s
) i
order by i.created_at desc, i.workflow_name desc, i.instance_id desc
