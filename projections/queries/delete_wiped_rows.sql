-- Readers are told whose rows are gone without naming the user: those that they have of the digest go,
-- and what the user has now is sent to them again. Whoever had not heard of an earlier deletion of a
-- row of the user, hears of it by that.
with gone as (
    delete from {table} t
    using json_to_recordset(%(rows)s::json) as r ({definitions}, wiped_user text)
    where {match}
    returning t.user_id
),
whose as (
    select user_id from gone where user_id is not null
    union
    select wiped_user
    from json_to_recordset(%(rows)s::json) as r (wiped_user text)
    where wiped_user is not null
),
heard as (
    delete from deletions d
    using whose
    where d.user_id = whose.user_id and d.table_name = {table_name}
),
sent_again as (
    update {table} t
    set changed_in = pg_current_xact_id()
    from whose
    where t.user_id = whose.user_id
      and not exists (
          select from json_to_recordset(%(rows)s::json) as r ({definitions}) where {match}
      )
)
insert into deletions (table_name, key, user_id, deleted_at)
select
    {table_name}, jsonb_build_object('user_sha256', digest), digest,
    to_timestamp(%(now_ms)s / 1000.0)
from (
    select encode(sha256(convert_to(user_id, 'UTF8')), 'hex') as digest from whose
) as named
on conflict (table_name, key) do update set
    deleted_in = excluded.deleted_in,
    deleted_at = excluded.deleted_at
