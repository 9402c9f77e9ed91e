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
