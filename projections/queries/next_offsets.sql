select partition, next_offset
from projection_offsets
where projection = %(projection)s and topic = %(topic)s
