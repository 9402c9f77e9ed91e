-- Rows that no valid cursor needs anymore.
with forgotten as (
    delete from sync_epochs e
    using sync_epochs next
    where next.number > e.number and next.began_at < to_timestamp(%(before_ms)s / 1000.0)
), pruned as (
    delete from deletions
    where deleted_at < to_timestamp(%(before_ms)s / 1000.0)
    returning deleted_in
)
update projection_identity
set deletions_pruned = greatest(deletions_pruned, (select max(deleted_in) from pruned))
where exists (select from pruned)
