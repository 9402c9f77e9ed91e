-- JSON has no equality operator and its text matters, so whole rows are compared as text.
insert into rebuild_rows (rebuild, number, partition, key, before, after)
select
    %(id)s,
    (select coalesce(max(number) + 1, 0) from rebuild_rows where rebuild = %(id)s)
    + row_number() over () - 1,
    0,
    convert_to(json_build_array(%(table)s::text, {key})::text, 'UTF8'),
    convert_to(b::text, 'UTF8'),
    convert_to(a::text, 'UTF8')
from {served} b
full join {rebuilt} a on {match}
where b::text is distinct from a::text
