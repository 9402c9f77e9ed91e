-- Commits of the SQL of steps.

-- name: claim_steps
-- Waits for transactions of older epochs, which lock the row for share.
insert into step_epochs as known (partition, epoch)
values (%(partition)s, %(epoch)s)
on conflict (partition) do update
set epoch = excluded.epoch,
    ticket = case when known.epoch = excluded.epoch then known.ticket else excluded.ticket end
where known.epoch <= excluded.epoch
returning ticket

-- name: commit_step
select latest, is_held, is_written, stored
from {schema}_steps.commit_step(
    %(partition)s, %(epoch)s, %(ticket)s, %(instance_key)s, %(run_number)s, %(step_key)s,
    %(attempt)s, %(returned)s
)

-- name: reset_step_session
-- Resets what a step has changed in its session.
select {schema}_steps.reset_session()

-- name: committed_steps
select instance_key, run_number, returned
from step_commits
where partition = %(partition)s
order by committed_at

-- name: forget_steps
delete from step_commits c
using unnest(%(instance_keys)s::text[], %(run_numbers)s::integer[], %(step_keys)s::text[])
    as recorded (instance_key, run_number, step_key)
where c.partition = %(partition)s
  and c.instance_key = recorded.instance_key
  and c.run_number = recorded.run_number
  and c.step_key = recorded.step_key
