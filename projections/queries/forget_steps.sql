delete from step_commits c
using unnest(%(instance_keys)s::text[], %(run_numbers)s::integer[], %(step_keys)s::text[])
    as recorded (instance_key, run_number, step_key)
where c.partition = %(partition)s
  and c.instance_key = recorded.instance_key
  and c.run_number = recorded.run_number
  and c.step_key = recorded.step_key
