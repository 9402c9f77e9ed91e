-- Scans all rows of the user, which are thousands at most.
select
    {table_name} as "table",
    json_build_object({pairs}) as key,
    array(
        select set_by.key
        from json_each_text(t.column_sources -> 'columns') as set_by
        where set_by.value::integer = one.number - 1
    ) as columns
from {table} t,
    json_array_elements(t.column_sources -> 'deliveries') with ordinality as one (delivery, number)
where ({owned})
  and one.delivery ->> 'event_id' = %(event_id)s
limit 1000
