select status, reason, count(*) as deliveries
from webhook_outcomes
where received_at >= %(since)s::timestamptz
group by status, reason
order by status, reason
