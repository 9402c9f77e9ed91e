-- API keys, with the rules of processors.api_keys.

-- name: create_api_key
-- Applies one creation of the topic api-keys. A key of a revoked key is revoked.
insert into api_keys (
    id, project_id, name, role, scopes, rate_limit, created_by, created_at, expires_at,
    revoked_by, revoked_at, "offset"
)
select r.id, r.project, r.name, nullif(r.role, ''),
       array(select json_array_elements_text(r.scopes)), nullif(r.rate_limit, 0),
       r.by, to_timestamp(r.at_ms / 1000), to_timestamp(nullif(r.expires_at_ms, 0) / 1000),
       c.revoked_by, c.revoked_at, r."offset"
from json_to_recordset(%(rows)s::json) as r (
    id text, project text, name text, role text, scopes json, rate_limit integer, by text,
    at_ms double precision, expires_at_ms double precision, "offset" bigint
)
left join api_keys c on c.id = r.by
on conflict (id) do nothing

-- name: rotate_api_key
-- Applies one rotation of the topic api-keys.
update api_keys k
set rotated_by = r.by, rotated_at = to_timestamp(r.at_ms / 1000),
    previous_until = to_timestamp(r.previous_until_ms / 1000),
    expires_at = to_timestamp(nullif(r.expires_at_ms, 0) / 1000), "offset" = r."offset"
from json_to_recordset(%(rows)s::json) as r (
    id text, by text, at_ms double precision, previous_until_ms double precision,
    expires_at_ms double precision, "offset" bigint
)
where k.id = r.id and k.revoked_at is null

-- name: revoke_api_key
-- Applies one revocation of the topic api-keys, also to the keys that the key created.
with recursive revoked as (
    select k.id, r.by, to_timestamp(r.at_ms / 1000) as at, r."offset"
    from json_to_recordset(%(rows)s::json) as r (
        id text, by text, at_ms double precision, "offset" bigint
    )
    join api_keys k on k.id = r.id and k.revoked_at is null
    union
    select k.id, v.by, v.at, v."offset"
    from revoked v
    join api_keys k on k.created_by = v.id
)
update api_keys k
set revoked_by = v.by, revoked_at = v.at, "offset" = v."offset"
from revoked v
where k.id = v.id and k.revoked_at is null

-- name: use_api_key
-- Applies the time of a last use.
update api_keys k
set last_used_at = greatest(k.last_used_at, to_timestamp(r.at_ms / 1000)), "offset" = r."offset"
from json_to_recordset(%(rows)s::json) as r (id text, at_ms double precision, "offset" bigint)
where k.id = r.id
