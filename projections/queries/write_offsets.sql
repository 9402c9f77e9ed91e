update projection_offsets o
set next_offset = written.next_offset,
    epoch = written.epoch,
    cause = written.cause,
    leader_epoch = written.leader_epoch,
    applied_at = to_timestamp(%(now_ms)s / 1000.0)
from unnest(
    %(topics)s::text[], %(partitions)s::integer[], %(next_offsets)s::bigint[],
    %(epochs)s::bigint[], %(causes)s::bigint[], %(leader_epochs)s::integer[]
) as written (topic, partition, next_offset, epoch, cause, leader_epoch)
where o.projection = %(projection)s
  and o.topic = written.topic
  and o.partition = written.partition
