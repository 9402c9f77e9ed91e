select {columns}, updated_at
from {table}
order by changed_in desc
limit %(limit)s
