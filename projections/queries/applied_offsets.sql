select topic, partition, next_offset, leader_epoch
from projection_offsets
where projection = %(projection)s and next_offset > 0
order by topic, partition
