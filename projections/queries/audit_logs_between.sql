-- In the order of the log, both ends included.
select id, key_id, project_id, action, resource, result, ip, user_agent, metadata_json,
       to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as created_at,
       "offset", hash
from audit_logs
where "offset" between %(first)s and %(last)s
order by "offset"
limit %(limit)s
