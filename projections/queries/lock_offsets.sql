-- Ordered, so that two projectors that lock the same rows wait for each other instead of
-- deadlocking.
select o.topic, o.partition, o.next_offset
from projection_offsets o
join unnest(%(topics)s::text[], %(partitions)s::integer[]) as named (topic, partition)
  on o.topic = named.topic and o.partition = named.partition
where o.projection = %(projection)s
order by o.topic, o.partition
for update of o
