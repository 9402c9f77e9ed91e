delete from {table} t
using json_to_recordset(%(rows)s::json) as r ({definitions})
where {match}
