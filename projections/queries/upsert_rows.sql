insert into {table} ({columns}, column_sources, updated_at)
select {values}, r.column_sources, to_timestamp(%(now_ms)s / 1000.0)
from unnest(%(rows)s::pg_temp.{row_type}[]) as r
on conflict ({key}) do update set
    {assignments},
    column_sources = excluded.column_sources,
    changed_in = excluded.changed_in,
    updated_at = excluded.updated_at
