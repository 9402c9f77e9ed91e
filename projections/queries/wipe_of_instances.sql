-- If no worker has ever claimed a partition, there are no instances.
select
    exists (select from workflow_owner) as has_workers,
    (
        select i.output::text from workflow_instance i
        where i.workflow_name = %(workflow_name)s and i.instance_id = %(instance_id)s
    ) as output
