insert into headwater.{table}
select (rebuilt_row.n).*
from (
    select convert_from(r.{new}, 'UTF8')::headwater.{table} as n
    from rebuild_rows r
    where r.rebuild = %(id)s
      and convert_from(r.key, 'UTF8')::json ->> 0 = %(table)s
      and r.{new} is not null
      and (r.{old} is null or r.number in (select rebuilt_number from taken))
    offset 0
) rebuilt_row
on conflict do nothing
