-- Locked for share until the transaction ends: a newer claim waits, and then knows of this row.
with owner as (
    select epoch from step_epochs where partition = %(partition)s for share
), written as (
    insert into step_commits
        (partition, instance_key, run_number, step_key, attempt, epoch, returned)
    select %(partition)s, %(instance_key)s, %(run_number)s, %(step_key)s, %(attempt)s, epoch,
        %(returned)s
    from owner
    where epoch = %(epoch)s
    on conflict do nothing
    returning true
)
select (select epoch from owner), exists (select from written)
