-- Instances, runs, steps, tokens, events and slots, as the projector writes them.

-- name: change_workflow_rows
-- Changes rows that may exist. A bit in "changed" stands for a column that is set.
update {table} t
set {assignments}
from json_to_recordset(%(rows)s::json) as r ({definitions})
where {match}

-- name: grant_workflow_slots
-- Slots are granted in order of arrival: of several grants, the first that covers a number applies.
update workflow_slot s
set granted_at = to_timestamp(g.at / 1000)
from (
    select w.workflow_name, w.instance_id, w.number, min(r.at) as at
    from json_to_recordset(%(rows)s::json) as r (
        workflow_name text, instance_id text, through bigint, at double precision
    )
    join workflow_slot w
      on w.workflow_name = r.workflow_name
     and w.instance_id = r.instance_id
     and w.number <= r.through
     and w.granted_at is null
    group by 1, 2, 3
) g
where s.workflow_name = g.workflow_name and s.instance_id = g.instance_id and s.number = g.number

-- name: insert_graph_events
-- The row of its token has the node of an event, and whether it is one of a task or of a child
-- workflow: what ends at a node without either has no event.
insert into workflow_graph_event ({columns})
select {values}
from json_to_recordset(%(rows)s::json) as r ({definitions})
left join workflow_token t
  on t.workflow_name = r.workflow_name
 and t.instance_id = r.instance_id
 and t.run_number = r.run_number
 and t.id = r.token_id
where r.child_name is null or t.task is not null or t.subworkflow is not null
on conflict do nothing

-- name: insert_workflow_rows
insert into {table} as t ({columns})
select {values}
from json_to_recordset(%(rows)s::json) as r ({definitions})
on conflict ({key}) do {action}

-- name: retry_workflow_runs
-- A retry copies entries of the previous run. Reopened ones and unfinished sleeps are copied
-- without their ends, and unconsumed events are copied, too. Negative sequence numbers keep their
-- order before all new ones. A retry of a graph copies all tokens: those that ended with the run
-- continue.
with retried as materialized (
    select * from json_to_recordset(%(rows)s::json) as r (
        workflow_name text, instance_id text, run_number integer, kept text[], reopened text[],
        started_at double precision, "offset" bigint
    )
),
named as (
    select r.*, k.step_key, false as restarts
    from retried r cross join lateral unnest(r.kept) as k (step_key)
    union all
    select r.*, k.step_key, true
    from retried r cross join lateral unnest(r.reopened) as k (step_key)
),
steps as (
    insert into workflow_step ({step_columns})
    select {step_copies}
    from named r
    join workflow_step t
      on t.workflow_name = r.workflow_name
     and t.instance_id = r.instance_id
     and t.run_number = r.run_number - 1
     and t.step_key = r.step_key
    window run as (partition by t.workflow_name, t.instance_id),
           in_order as (run order by t.ordinal, t.sequence)
    on conflict do nothing
),
tokens as (
    insert into workflow_token ({token_columns})
    select {token_copies}
    from retried r
    join workflow_token t
      on t.workflow_name = r.workflow_name
     and t.instance_id = r.instance_id
     and t.run_number = r.run_number - 1
    cross join lateral (select t.retry_status is not null) as ended (restarts)
    on conflict do nothing
)
insert into workflow_event ({event_columns})
select {event_copies}
from retried r
join workflow_event t
  on t.workflow_name = r.workflow_name
 and t.instance_id = r.instance_id
 and t.run_number = r.run_number - 1
 and t.delivered_at is null
window run as (partition by t.workflow_name, t.instance_id),
       in_order as (run order by t.sequence)
on conflict do nothing

-- name: start_workflow_instances
-- Begins runs: the row of the previous run moves to workflow_run. A retry continues that run and
-- keeps its start.
with started as materialized (
    select * from json_to_recordset(%(rows)s::json) as r ({definitions})
),
superseded as (
    insert into workflow_run ({run_columns})
    select {run_values}
    from started r
    join workflow_instance i
      on i.workflow_name = r.workflow_name and i.instance_id = r.instance_id
    where r.run_number > 0 and r.run_number > i.run_number
    on conflict do nothing
)
insert into workflow_instance as t ({columns})
select {values}
from started r
on conflict (workflow_name, instance_id) do update set {assignments}

-- name: trim_workflow_steps
-- Uses the key's range of the primary key: '~' is chr(126), and keys below "key/~" are between
-- "key/" and "key/" followed by chr(127). Iterations are numbers there, so they are compared as
-- numbers.
delete from workflow_step s
using json_to_recordset(%(rows)s::json) as r (
    workflow_name text, instance_id text, run_number integer, step_key text, trim_before bigint
)
where s.workflow_name = r.workflow_name
  and s.instance_id = r.instance_id
  and s.run_number = r.run_number
  and s.step_key >= r.step_key || '/~'
  and s.step_key < r.step_key || '/' || chr(127)
  and substring(substr(s.step_key, length(r.step_key) + 3) from '^([0-9]{1,18})/')::bigint
      < r.trim_before

-- name: upsert_workflow_owners
insert into workflow_owner (
    partition, epoch, owner, workflows, known, params_schemas, limits, claimed_at
)
select r.partition, r.epoch, r.owner, r.workflows, r.known, r.params_schemas, r.limits,
       to_timestamp(r.claimed_at / 1000)
from json_to_recordset(%(rows)s::json) as r (
    partition integer, epoch bigint, owner text, workflows text[], known text[], params_schemas json,
    limits json, claimed_at double precision
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
