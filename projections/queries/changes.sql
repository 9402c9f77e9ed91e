-- Named otherwise than the column: "order by" would take the text, in which 9 comes after 10.
select {columns}, updated_at, changed_in::text as written_in
from {table}
where {condition}
  and (changed_in, {key}) > (%(changed_in)s::xid8, {after})
  and changed_in < %(horizon)s::xid8
  and updated_at >= %(since)s::timestamptz
order by changed_in, {key}
limit %(limit)s
