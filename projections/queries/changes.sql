-- The alias differs from the column name, because "order by" would use the alias: as text, 9 sorts
-- after 10.
select {columns}, updated_at, changed_in::text as written_in
from {table}
where {condition}
  and (changed_in, {key}) > (%(changed_in)s::xid8, {after})
  and changed_in < %(horizon)s::xid8
  and updated_at >= %(since)s::timestamptz
order by changed_in, {key}
limit %(limit)s
