-- Projectors wait until this transaction ends.
select partition, next_offset
from projection_offsets
where projection = %(projection)s
order by partition
for update
