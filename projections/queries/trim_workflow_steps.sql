-- Uses the key's range of the primary key: '~' is chr(126), and keys below "key/~" are between
-- "key/" and "key/" followed by chr(127). Iterations are numbers there, so they are compared as
-- numbers.
delete from workflow_step s
using json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, step_key text, trim_before bigint
)
where s.workflow_name = r.workflow_name
  and s.instance_id = r.instance_id
  and s.run_number = r.run_number
  and s.step_key >= r.step_key || '/~'
  and s.step_key < r.step_key || '/' || chr(127)
  and substring(substr(s.step_key, length(r.step_key) + 3) from '^([0-9]{1,18})/')::bigint
      < r.trim_before
