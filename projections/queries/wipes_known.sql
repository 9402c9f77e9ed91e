select count(*) as number, max(ordered_at) as latest
from wipes
