insert into workflow_owner (
    partition, epoch, owner, workflows, known, params_schemas, limits, claimed_at
)
select r.partition, r.epoch, r.owner, r.workflows, r.known, r.params_schemas, r.limits,
       to_timestamp(r.claimed_at_ms / 1000)
from json_to_recordset(%(rows)s::json) as r (
    partition integer, epoch bigint, owner text, workflows text[], known text[], params_schemas json,
    limits json, claimed_at_ms double precision
)
on conflict (partition) do update set
    epoch = excluded.epoch,
    owner = excluded.owner,
    workflows = excluded.workflows,
    known = array(
        select distinct name collate "C" from unnest(workflow_owner.known || excluded.known) as n (name)
        order by 1
    ),
    params_schemas = excluded.params_schemas,
    limits = excluded.limits,
    claimed_at = excluded.claimed_at
