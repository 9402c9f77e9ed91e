select returned
from step_commits
where partition = %(partition)s
  and instance_key = %(instance_key)s
  and run_number = %(run_number)s
  and step_key = %(step_key)s
