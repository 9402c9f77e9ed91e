select {columns}, json_build_object({pairs}) as key, column_sources
from {table} t
where {match}
