-- Audit entries.

-- name: audit_logs
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

-- name: audit_logs_between
-- In the order of the log, both ends included.
select id, key_id, project_id, action, resource, result, ip, user_agent, metadata_json,
       to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as created_at,
       "offset", hash
from audit_logs
where "offset" between %(first)s and %(last)s
order by "offset"
limit %(limit)s

-- name: insert_audit_logs
-- Audit entries; each hash covers the entry and all before it (projections.audit.chain).
insert into audit_logs (
    id, key_id, project_id, action, resource, result, ip, user_agent, metadata_json, created_at,
    "offset", hash
)
select r.id, r.key_id, r.project_id, r.action, r.resource, r.result, r.ip, r.user_agent,
       r.metadata_json, r.created_at, r."offset",
       audit_chain(head.hash, r.entry) over (order by r."offset")
from json_to_recordset(%(rows)s::json) as r (
    id text, key_id text, project_id text, action text, resource text, result text, ip text,
    user_agent text, metadata_json text, created_at timestamptz, "offset" bigint, entry text
) cross join (
    select coalesce(
        (select hash from audit_logs order by "offset" desc limit 1),
        decode(repeat('00', 32), 'hex')
    ) as hash
) as head
