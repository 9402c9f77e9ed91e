select status, reason, count(*) as deliveries
from webhook_outcomes
group by status, reason
order by status, reason
