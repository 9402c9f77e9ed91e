select projection, topic, partition, next_offset, applied_at
from projection_offsets
order by projection, topic, partition
