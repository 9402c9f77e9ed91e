-- Records the loss permanently. An active projector holds a lock on the row and is further ahead.
with moved as (
    update projection_offsets
    set next_offset = %(end)s, epoch = %(epoch)s, cause = %(cause)s,
        leader_epoch = %(leader_epoch)s,
        applied_at = to_timestamp(%(now_ms)s / 1000.0)
    where projection = %(projection)s and topic = %(topic)s and partition = %(partition)s
      and next_offset = %(applied)s
    returning topic, partition
)
insert into projection_errors (topic, partition, "offset", error, value, at)
select topic, partition, %(end)s, %(error)s, null, to_timestamp(%(now_ms)s / 1000.0)
from moved
on conflict (topic, partition, "offset") do update set error = excluded.error, at = excluded.at
