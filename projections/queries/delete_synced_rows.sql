-- Deletions of missing rows are stored, too: a reader may have a row that Postgres has lost.
with deleted as (
    delete from {table} t
    using json_to_recordset(%(rows)s::json) as r ({definitions})
    where {match}
    returning {returned}, t.user_id
)
insert into deletions (table_name, key, user_id, deleted_at)
select {table_name}, jsonb_build_object({pairs}), {user_id}, to_timestamp(%(now_ms)s / 1000.0)
from json_to_recordset(%(rows)s::json) as r ({definitions})
left join deleted t on {match}
on conflict (table_name, key) do update set
    user_id = coalesce(excluded.user_id, deletions.user_id),
    deleted_in = excluded.deleted_in,
    deleted_at = excluded.deleted_at
