-- Every transaction before the horizon has ended: its rows are visible or will never exist. Rows
-- written since a later epoch may reuse numbers of lost transactions that a cursor has seen.
select
    i.id::text as database,
    pg_snapshot_xmin(pg_current_snapshot())::text as horizon,
    i.deletions_pruned::text as deletions_pruned,
    coalesce((select id::text from sync_epochs order by number desc limit 1), '') as epoch,
    %(epoch)s = '' or c.id is not null as epoch_known,
    (
        select min(began_in)::text
        from sync_epochs
        where number > coalesce(c.number, 0)
    ) as next_epoch_began
from projection_identity i
left join sync_epochs c on c.id::text = %(epoch)s
