select topic, partition, "offset", error, value, at
from projection_errors
order by at desc, topic, partition, "offset"
limit %(limit)s
