select table_name, key, deleted_in::text as written_in
from deletions
where (deleted_in, table_name, key) > (%(changed_in)s::xid8, %(key_0)s, %(key_1)s::jsonb)
  and deleted_in < %(horizon)s::xid8
  and deleted_at >= %(since)s::timestamptz
  and (
      %(user_id)s::text is null
      or user_id in (%(user_id)s, encode(sha256(convert_to(%(user_id)s::text, 'UTF8')), 'hex'))
  )
  and (%(table)s::text is null or table_name = %(table)s)
order by deleted_in, table_name, key
limit %(limit)s
