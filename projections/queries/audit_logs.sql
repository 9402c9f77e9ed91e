-- Newest first; a filter that is null has no effect.
select id, key_id, project_id, action, resource, result, ip, user_agent, metadata_json,
       to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as created_at,
       "offset", hash
from audit_logs
where "offset" < %(before)s
  and (%(action)s::text is null or action = %(action)s)
  and (%(result)s::text is null or result = %(result)s)
  and (%(key_id)s::text is null or key_id = %(key_id)s)
  and (%(run_id)s::text is null or audit_runs(metadata_json) @> array[%(run_id)s::text])
  and (%(since)s::timestamptz is null or created_at >= %(since)s)
  and (%(until)s::timestamptz is null or created_at < %(until)s)
order by "offset" desc
limit %(limit)s
