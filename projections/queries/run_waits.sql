(i.status in ('waiting', 'paused') and exists (
    select
    from workflow_slot w
    where w.workflow_name = i.workflow_name
      and w.holder_id = i.instance_id
      and w.holder_run = i.run_number
      and w.granted_at is null
))
