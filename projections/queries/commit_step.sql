select latest, is_held, is_written, stored
from headwater_steps.commit_step(
    %(partition)s, %(epoch)s, %(ticket)s, %(instance_key)s, %(run_number)s, %(step_key)s,
    %(attempt)s, %(returned)s
)
