insert into projection_offsets (projection, topic, partition, next_offset)
select %(projection)s, named.topic, named.partition, 0
from unnest(%(topics)s::text[], %(partitions)s::integer[]) as named (topic, partition)
order by named.topic, named.partition
on conflict do nothing
