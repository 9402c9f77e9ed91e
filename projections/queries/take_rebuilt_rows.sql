-- A row that has changed since the comparison stays as it is.
create temporary table taken as
with kept as (
    select r.number as rebuilt_number, r.{old} as rebuilt, convert_from(r.{old}, 'UTF8')::headwater.{table} as o
    from rebuild_rows r
    where r.rebuild = %(id)s
      and convert_from(r.key, 'UTF8')::json ->> 0 = %(table)s
      and r.{old} is not null
    offset 0
),
deleted as (
    delete from headwater.{table} t
    using kept
    where {match}
      and convert_to(t::text, 'UTF8') = kept.rebuilt
    returning kept.rebuilt_number
)
select rebuilt_number from deleted
