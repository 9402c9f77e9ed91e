-- Audit entries.

-- name: audit_logs
-- Newest first; a filter that is null has no effect.
select id, key_id, project_id, action, resource, result, ip, user_agent, metadata_json,
       to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as created_at,
       "offset", hash
from audit_logs
where "offset" < %(before)s
  and (%(project_id)s::text is null or project_id = %(project_id)s)
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
  and (%(project_id)s::text is null or project_id = %(project_id)s)
order by "offset"
limit %(limit)s

-- name: audit_heads
-- The hash of the last entry of every project, up to an offset.
select distinct on (project_id) project_id, hash
from audit_logs
where "offset" <= %(last)s
order by project_id, "offset" desc

-- name: insert_audit_logs
-- Audit entries; each hash covers the entry and all before it of its project
-- (projections.audit.linked).
insert into audit_logs (
    id, key_id, project_id, action, resource, result, ip, user_agent, metadata_json, created_at,
    "offset", hash
)
select r.id, r.key_id, r.project_id, r.action, r.resource, r.result, r.ip, r.user_agent,
       r.metadata_json, r.created_at, r."offset",
       audit_chain(coalesce(head.hash, decode(repeat('00', 32), 'hex')), r.entry)
           over (partition by r.project_id order by r."offset")
from json_to_recordset(%(rows)s::json) as r (
    id text, key_id text, project_id text, action text, resource text, result text, ip text,
    user_agent text, metadata_json text, created_at timestamptz, "offset" bigint, entry text
) left join lateral (
    select a.hash
    from audit_logs as a
    where a.project_id = r.project_id
    order by a."offset" desc
    limit 1
) as head on true
