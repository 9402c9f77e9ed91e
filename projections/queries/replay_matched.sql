select count(*) as matched
from webhook_outcomes
where {selected}
