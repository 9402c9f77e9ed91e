select instance_key, run_number, returned
from step_commits
where partition = %(partition)s
order by committed_at
