-- Changes of an earlier run do not affect the row. A status that is not forced applies only to an
-- active or waiting run; a paused or ended run keeps its status.
update workflow_instance i
set status = case
        when r.forced or i.status in ('active', 'waiting') then coalesce(r.status, i.status)
        else i.status
    end,
    output = case when r.ended then r.output::json else i.output end,
    error_name = case when r.ended then r.error_name else i.error_name end,
    error_message = case when r.ended then r.error_message else i.error_message end,
    error_detail = case when r.ended then r.error_detail::json else i.error_detail end,
    completed_at = case
        when r.ended then to_timestamp(r.completed_at_ms / 1000) else i.completed_at
    end,
    retention_until = case
        when r.ended then to_timestamp(r.retention_until_ms / 1000) else i.retention_until
    end,
    updated_at = to_timestamp(r.updated_at_ms / 1000),
    partition = r.partition,
    "offset" = r."offset"
from json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, status text, forced boolean,
    ended boolean, output text, error_name text, error_message text, error_detail text,
    completed_at_ms double precision, retention_until_ms double precision,
    updated_at_ms double precision, partition integer,
    "offset" bigint
)
where i.workflow_name = r.workflow_name
  and i.instance_id = r.instance_id
  and i.run_number = r.run_number
