select o.topic, o.partition, o.next_offset, o.epoch, o.cause, o.leader_epoch
from projection_offsets o
join unnest(%(topics)s::text[], %(partitions)s::integer[]) as named (topic, partition)
  on o.topic = named.topic and o.partition = named.partition
where o.projection = %(projection)s
