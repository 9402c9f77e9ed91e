-- Applies one deployment record of the topic deployments, with the rules of processors.deployments.
insert into deployment (
    id, app, digest, size, workflows, params_schemas, limits, created_by, created_at, "offset"
)
select r.id, r.app, r.digest, r.size,
       array(select json_array_elements_text(r.workflows)), r.params_schemas, r.limits,
       r.by, to_timestamp(r.at_ms / 1000), r."offset"
from json_to_recordset(%(rows)s::json) as r (
    id text, app text, digest text, size bigint, workflows json, params_schemas json, limits json,
    by text, at_ms double precision,
    "offset" bigint
)
on conflict (id) do nothing
