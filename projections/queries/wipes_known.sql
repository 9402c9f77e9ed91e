select count(*), max(ordered_at)
from wipes
