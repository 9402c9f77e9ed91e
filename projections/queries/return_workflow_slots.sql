delete from workflow_slot s
using json_to_recordset(%(rows)s::json) as r (workflow_name text, instance_id text, number bigint)
where s.workflow_name = r.workflow_name and s.instance_id = r.instance_id and s.number = r.number
