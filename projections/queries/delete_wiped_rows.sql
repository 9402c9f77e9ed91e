-- Readers receive the digest of a wiped user instead of the name: they delete the rows of the
-- digest and receive the user's current rows again. This also covers earlier deletions of the
-- user's rows that a reader has not received yet.
with deleted as (
    delete from {table} t
    using json_to_recordset(%(rows)s::json) as r ({definitions}, wiped_user text)
    where {match}
    returning t.user_id
),
wiped_user_ids as (
    select user_id from deleted where user_id is not null
    union
    select wiped_user
    from json_to_recordset(%(rows)s::json) as r (wiped_user text)
    where wiped_user is not null
),
replaced_deletions as (
    delete from deletions d
    using wiped_user_ids
    where d.user_id = wiped_user_ids.user_id and d.table_name = {table_name}
),
sent_again as (
    update {table} t
    set changed_in = pg_current_xact_id()
    from wiped_user_ids
    where t.user_id = wiped_user_ids.user_id
      and not exists (
          select from json_to_recordset(%(rows)s::json) as r ({definitions}) where {match}
      )
)
insert into deletions (table_name, key, user_id, deleted_at)
select
    {table_name}, jsonb_build_object('user_sha256', digest), digest,
    to_timestamp(%(now_ms)s / 1000.0)
from (
    select encode(sha256(convert_to(user_id, 'UTF8')), 'hex') as digest from wiped_user_ids
) as named
on conflict (table_name, key) do update set
    deleted_in = excluded.deleted_in,
    deleted_at = excluded.deleted_at
