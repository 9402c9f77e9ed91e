-- Instances, runs, steps, tokens, events and jobs, as the API reads them.

-- name: children_of_instance
select workflow_name, instance_id, status
from workflow_instance
where parent_workflow_name = %(workflow_name)s and parent_instance_id = %(instance_id)s

-- name: declared_workflows
-- Current workflows: those of the active deployment, on which new runs begin, before those of the
-- newest claims of owners.
select
    name collate "C" as name, o.params_schemas ->> name as params_schema,
    (o.limits -> name)::jsonb as concurrency, o.claimed_at as since
from workflow_owner o cross join lateral unnest(o.workflows) as named (name)
union all
select name, d.params_schemas ->> name, (d.limits -> name)::jsonb, 'infinity'
from settings s
join deployment d on d.id = s.value
cross join lateral unnest(d.workflows) as named (name)
where s.key = 'active_deployment'

-- name: expired_counts
select workflow_name as workflow, count(*) as instances
from workflow_instance
where retention_until <= %(until)s::timestamptz
  and (%(workflow)s::text is null or workflow_name = %(workflow)s)
group by workflow_name
order by workflow_name

-- name: expired_instances
select workflow_name as workflow, instance_id, retention_until, updated_at
from workflow_instance
where retention_until <= %(until)s::timestamptz
  and (retention_until, workflow_name, instance_id)
    > (%(after_until)s::timestamptz, %(after_workflow)s::text collate "C", %(after_id)s::text collate "C")
  and (%(workflow)s::text is null or workflow_name = %(workflow)s)
order by retention_until, workflow_name, instance_id
limit %(limit)s

-- name: failed_runs
-- Runs that may need a person, by workflow, state and error. Errored: the newest of each workflow.
-- Retrying: an open step has failed at least twice.
with known as materialized (
    {workflows}
),
retrying as (
    (
        select workflow_name, instance_id, run_number, error_name, error_message, last_attempt_at as at
        from workflow_step
        where next_retry_at is not null and attempts > 1
        order by next_retry_at
        limit %(limit)s
    )
    union all
    (
        select workflow_name, instance_id, run_number, error_name, error_message, updated_at
        from workflow_token
        where next_retry_at is not null and attempts > 1
        order by next_retry_at
        limit %(limit)s
    )
),
failed as (
    select i.workflow_name, 'errored' as state, i.error_name, i.error_message, i.instance_id,
           i.updated_at as at
    from known
    cross join lateral (
        select *
        from workflow_instance
        where workflow_name = known.name and status = 'errored'
        order by updated_at desc
        limit %(limit)s
    ) i
    union all
    select r.workflow_name, 'retrying', r.error_name, r.error_message, r.instance_id, r.at
    from retrying r
    join workflow_instance i using (workflow_name, instance_id, run_number)
    where i.status in ('active', 'waiting')
)
select
    workflow_name as workflow, state, coalesce(error_name, '') as error, count(*) as runs,
    count(*) filter (where at >= %(since)s::timestamptz) as new,
    min(at) as first_at, max(at) as last_at,
    (array_agg(instance_id order by at desc))[1] as instance_id,
    coalesce((array_agg(error_message order by at desc))[1], '') as message
from failed
group by 1, 2, 3
order by state, last_at desc, workflow, error
limit %(groups)s

-- name: instance_counts
select name as workflow, status, instances, not ({of_authors}) as built_in
from (
    select workflow_name as name, status, count(*) as instances
    from workflow_instance
    group by workflow_name, status
) i
order by name, status

-- name: instances_named
-- Instances with params that contain user_id, ordered by key; the caller parses the params.
select
    i.workflow_name, i.instance_id, i.status, i.params::text as params, i.created_at,
    exists (
        select from effects e
        where e.workflow = i.workflow_name and e.instance_id = i.instance_id
    ) as has_effect
from workflow_instance i
where (i.workflow_name, i.instance_id) > (%(workflow_name)s, %(instance_id)s)
  and i.params::text like '%%user_id%%'
order by i.workflow_name, i.instance_id
limit %(limit)s

-- name: jobs
-- Jobs that have not ended, oldest first; without inputs, which may be large.
select workflow_name, instance_id, run_number, id, id::text as token_id, node_ref, task as type, status,
       attempts as attempt, worker, lease_until, next_retry_at, created_at, updated_at
from workflow_token
where completed_at is null
  and idempotency_token is not null {filter}
  and (created_at, workflow_name, instance_id, run_number, id) {beyond} (
      %(created_at)s::timestamptz, %(workflow_name)s::text collate "C",
      %(instance_id)s::text collate "C", %(run_number)s::integer, %(id)s::bigint
  )
  -- Excludes jobs of runs that were restarted.
  and exists (
      select 1
      from workflow_instance i
      where i.workflow_name = workflow_token.workflow_name
        and i.instance_id = workflow_token.instance_id
        and i.run_number = workflow_token.run_number
  )
order by created_at {order}, workflow_name {order}, instance_id {order}, run_number {order}, id {order}
limit %(limit)s

-- name: open_jobs
-- Jobs available to a worker: of these types and not reserved, longest waiting first. The first is
-- always returned; more follow up to the limits of jobs and of input bytes.
with candidate as (
    select job.*
    from (select distinct unnest(%(types)s::text[]) as type) requested
    -- One subquery per type, so that the index provides the order for any number of open jobs.
    cross join lateral (
        select
            t.workflow_name, t.instance_id, t.run_number, t.id, t.node_ref, t.task, t.attempts,
            t.input::text as input, t.idempotency_token, t.updated_at
        from workflow_token t
        join workflow_instance i
          on i.workflow_name = t.workflow_name
         and i.instance_id = t.instance_id
         and i.run_number = t.run_number
         and i.status <> 'paused'
        where t.task = requested.type
          and t.status = 'dispatched'
          and t.idempotency_token is not null
          and concat_ws('.', t.workflow_name, t.instance_id, t.run_number, t.id, t.attempts)
              not in (select unnest(%(reserved)s::text[]))
        order by t.updated_at
        limit %(limit)s
    ) job
),
open_job as (
    select
        *,
        row_number() over waiting as rank,
        sum(octet_length(input)) over waiting as bytes
    from candidate
    window waiting as (order by updated_at, workflow_name, instance_id, id)
)
select
    workflow_name, instance_id, run_number, id::text as token_id, node_ref, task as type,
    attempts as attempt, input, idempotency_token
from open_job
where rank = 1 or (rank <= %(limit)s and bytes <= %(bytes)s)
order by rank

-- name: queues
-- Queues by the messages that are not delivered yet.
select labels ->> %(label)s as name, count(*) as waiting
from workflow_instance
where workflow_name = %(workflow)s and status in ('active', 'waiting', 'paused')
group by 1
order by 1
limit %(limit)s

-- name: run
-- An instance by its id alone, in any workflow, with one key lookup per workflow. There are two if
-- callers used the same id in two workflows.
select i.workflow_name, i.instance_id, i.status, i.error_name, i.error_message, i.deployment_id,
       i.created_at, i.started_at, i.updated_at, i.completed_at, {waits} as waits,
       i.params::text as input, i.output::text as output, i.partition, i."offset"
from ({workflows}) as known (name)
join workflow_instance i on i.workflow_name = known.name and i.instance_id = %(run_id)s
order by i.workflow_name
limit 2

-- name: run_waits
(i.status in ('waiting', 'paused') and exists (
    select
    from workflow_slot w
    where w.workflow_name = i.workflow_name
      and w.holder_id = i.instance_id
      and w.holder_run = i.run_number
      and w.granted_at is null
))

-- name: runs
-- Like the listing of instances, without large columns. A run that waits for a slot has not begun.
select i.workflow_name, i.instance_id, i.status, i.error_name, i.error_message, i.deployment_id,
       i.created_at, i.started_at, i.updated_at, i.completed_at, {waits} as waits {payload}
from (
    select one.*
    from ({workflows}) as known (name)
    cross join lateral (
        select *
        from workflow_instance i
        where workflow_name = known.name {filter}
          and (created_at, workflow_name, instance_id) < (
              %(created_at)s::timestamptz,
              %(workflow_name)s::text collate "C",
              %(instance_id)s::text collate "C"
          )
        order by created_at desc, instance_id desc
        limit %(limit)s
    ) one
    order by one.created_at desc, one.workflow_name desc, one.instance_id desc
    limit %(limit)s
) i
order by i.created_at desc, i.workflow_name desc, i.instance_id desc

-- name: workflow_changes
-- Changes of an instance's current run after an offset, in the order of the log. A page ends with a
-- whole record: "through" is the last record whose changes fit, or the first record.
with instance as materialized (
    select run_number, run_offset, partition, "offset" as latest,
           lpad(partition::text, 5, '0') || '-' as lines
    from workflow_instance
    where workflow_name = %(workflow_name)s and instance_id = %(instance_id)s
),
changed as (
    {offsets}
),
cut as (
    select "offset", max("offset") over () as last, count(*) over () > %(limit)s::bigint as over
    from (select "offset" from changed order by "offset" limit %(limit)s::bigint + 1) first
),
page as materialized (
    select i.*, coalesce(
        (
            select coalesce(max("offset") filter (where "offset" < last), max(last))
            from cut
            where over
        ),
        greatest(i.latest, %(after)s::bigint)
    ) as through
    from instance i
)
select p.run_number, p.run_offset, p.through, p.through < p.latest as more, c."offset", c.rank,
       c.row::text as row
from page p
left join (
    {rows}
) c on true
order by c."offset", c.rank, c.first, c.second

-- name: workflow_changes_offsets
(
    select {offset} as "offset"
    from {table}
    where workflow_name = %(workflow_name)s
      and instance_id = %(instance_id)s
      and run_number = (select run_number from instance)
      and {after}
    order by {position}
    limit %(limit)s::bigint + 1
)

-- name: workflow_changes_rows
select {offset} as "offset", {rank} as rank, {first}::bigint as first, {second}::bigint as second,
       row_to_json(r) as row
from (
    select {columns}
    from {table} t
    where workflow_name = %(workflow_name)s
      and instance_id = %(instance_id)s
      and run_number = (select run_number from page)
      and {after}
      and {through}
) r

-- name: workflow_events
select {columns}
from workflow_event t
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s
  and sequence {beyond} %(sequence)s::bigint
order by sequence {order}
limit %(limit)s

-- name: workflow_instance
select {columns}, to_jsonb(s) as current_step,
       t.current_tokens, l.awaited_slot
from workflow_instance i
{current_step}where i.workflow_name = %(workflow_name)s and i.instance_id = %(instance_id)s

-- name: workflow_instances
-- Each workflow has an index in the order of the page; for all workflows, each provides at most a
-- page.
select {columns},
       to_jsonb(s) as current_step, t.current_tokens, l.awaited_slot
from (
    select one.*
    from ({workflows}) as known (name)
    cross join lateral (
        select *
        from workflow_instance
        where workflow_name = known.name {filter}
          and (created_at, workflow_name, instance_id) {beyond} (
              %(created_at)s::timestamptz,
              %(workflow_name)s::text collate "C",
              %(instance_id)s::text collate "C"
          )
        order by created_at {order}, instance_id {order}
        limit %(limit)s
    ) one
    order by one.created_at {order}, one.workflow_name {order}, one.instance_id {order}
    limit %(limit)s
) i
{current_step}order by i.created_at {order}, i.workflow_name {order}, i.instance_id {order}

-- name: open_instances_with_labels
-- How many instances of a workflow with labels have not ended; at most a limit.
select count(*) as instances
from (
    select
    from workflow_instance
    where workflow_name = %(workflow_name)s
      and labels @> %(labels)s::jsonb
      and status in ('active', 'waiting')
    limit %(limit)s
) i

-- name: stuck_instances
-- Instances that should have continued before a time: with a timer that is late, an attempt that has
-- outlived its timeout, or code that is neither running nor waiting. Reads all unfinished entries.
with late as (
    select workflow_name, instance_id, run_number,
           coalesce(
               next_retry_at, wake_at, last_attempt_at + timeout_ms * interval '1 millisecond'
           ) as due_at
    from workflow_step
    where status in ('pending', 'waiting')
    union all
    select workflow_name, instance_id, run_number, coalesce(next_retry_at, wake_at)
    from workflow_token
    where completed_at is null
    union all
    select workflow_name, instance_id, run_number, updated_at
    from workflow_instance i
    where status = 'active'
      and not exists (
          select
          from workflow_step s
          where s.workflow_name = i.workflow_name and s.instance_id = i.instance_id
            and s.run_number = i.run_number and s.status in ('pending', 'waiting')
      )
      and not exists (
          select
          from workflow_token t
          where t.workflow_name = i.workflow_name and t.instance_id = i.instance_id
            and t.run_number = i.run_number and t.completed_at is null
      )
)
select workflow_name as workflow, instance_id, run_number as run,
       (extract(epoch from min(l.due_at)) * 1000)::bigint as since_ms
from late l
join workflow_instance i using (workflow_name, instance_id, run_number)
where l.due_at < to_timestamp(%(before_ms)s::double precision / 1000)
  and i.status in ('active', 'waiting')
group by workflow_name, instance_id, run_number
order by since_ms
limit %(limit)s

-- name: workflow_is_known
-- Whether a workflow exists: an owner has or had its code, it is deployed, it has instances, or it
-- is built in.
select exists (select from ({declared}) as declared where name = %(name)s)
    or exists (select from workflow_owner where %(name)s = any (known))
    or exists (select from deployment where %(name)s = any (workflows))
    or exists (select from graph_definition where name = %(name)s)
    or exists (select from workflow_instance where workflow_name = %(name)s)
    or exists (select from (values (%(name)s::text)) as requested (name) where not ({of_authors}))
    as known

-- name: runs_of_deployments
-- By deployment, the number of runs that have not ended, and when the latest of the others ended.
-- Together, the parameters are the workflows of deployments. Both parts use an index.
with running as (
    select deployment_id, count(*) as runs
    from workflow_instance
    where workflow_name = any (%(workflows)s)
      and status in ('active', 'waiting', 'paused')
      and deployment_id = any (%(deployments)s)
    group by deployment_id
), ended as (
    select named.deployment_id, max(latest.completed_at) as last_at
    from unnest(%(deployments)s::text[], %(workflows)s::text[])
        as named (deployment_id, workflow_name)
    left join lateral (
        select i.completed_at
        from workflow_instance i
        where i.workflow_name = named.workflow_name
          and i.deployment_id = named.deployment_id
          and i.completed_at is not null
        order by i.completed_at desc
        limit 1
    ) latest on true
    group by named.deployment_id
)
select deployment_id, coalesce(running.runs, 0) as open_runs, ended.last_at as last_ended_at
from ended left join running using (deployment_id)

-- name: open_runs_of_workflows
-- Runs that have not ended, by workflow.
select workflow_name, count(*) as runs
from workflow_instance
where workflow_name = any (%(workflows)s)
  and status in ('active', 'waiting', 'paused')
group by workflow_name

-- name: sampled_instances
-- Of each workflow the oldest and the newest open instances, and the newest ended ones. Each status
-- is a range of the index by status.
select known.name, one.instance_id
from unnest(%(workflows)s::text[]) as known (name)
cross join unnest(array['active', 'waiting', 'paused']) as open (status)
cross join lateral (
    (
        select instance_id
        from workflow_instance
        where workflow_name = known.name and status = open.status
        order by created_at, instance_id
        limit %(open)s
    )
    union
    (
        select instance_id
        from workflow_instance
        where workflow_name = known.name and status = open.status
        order by created_at desc, instance_id desc
        limit %(open)s
    )
) one
union all
select known.name, one.instance_id
from unnest(%(workflows)s::text[]) as known (name)
cross join unnest(array['complete', 'errored', 'terminated']) as ended (status)
cross join lateral (
    select instance_id
    from workflow_instance
    where workflow_name = known.name and status = ended.status
    order by created_at desc, instance_id desc
    limit %(ended)s
) one

-- name: named_instances
select %(workflow)s::text as name, instance_id
from unnest(%(instances)s::text[]) as named (instance_id)

-- name: runs_to_replay
-- Runs of chosen instances with where their histories begin, the last updated first.
with chosen as (
{chosen})
select i.workflow_name, i.instance_id, i.run_number, i.status, i.deployment_id, i.partition,
       exists (
           select from workflow_owner where i.workflow_name = any (workflow_owner.workflows)
       ) as has_app,
       least(
           i.run_offset,
           (
               select min(before.run_offset)
               from workflow_run before
               where before.workflow_name = i.workflow_name
                 and before.instance_id = i.instance_id
                 and before.started_at = i.started_at
           )
       ) as "offset"
from chosen
join workflow_instance i
  on i.workflow_name = chosen.name and i.instance_id = chosen.instance_id
order by i.updated_at desc, i.workflow_name, i.instance_id

-- name: workflow_limits
-- Concurrency limits with holders and waiting runs. Of the keys of a limit, only those with the
-- most waiting runs are included; there may be one key per customer.
select known.name, known.concurrency,
       coalesce(sum(k.held), 0)::bigint as held, coalesce(sum(k.waiting), 0)::bigint as waiting,
       coalesce(
           jsonb_agg(
               jsonb_build_object(
                   'key', k.key, 'held', k.held, 'waiting', k.waiting,
                   'waiting_since', k.waiting_since
               )
               order by k.waiting desc, k.held desc, k.instance_id
           ) filter (where k.rank <= 20),
           '[]'
       ) as slots
from (
    select distinct on (name) name, concurrency
    from ({declared}) as declared
    order by name, since desc
) known
left join (
    select workflow_name, instance_id, min(key::text)::jsonb as key,
           count(granted_at) as held, count(*) - count(granted_at) as waiting,
           min(asked_at) filter (where granted_at is null) as waiting_since,
           row_number() over (
               partition by workflow_name
               order by count(*) - count(granted_at) desc, count(*) desc, instance_id
           ) as rank
    from workflow_slot
    group by workflow_name, instance_id
) k on k.workflow_name = known.name
where known.concurrency is not null
group by known.name, known.concurrency

-- name: workflow_logs
select {columns}
from workflow_log t
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s {filter}
  and id {beyond} %(id)s::text collate "C"
order by id {order}
limit %(limit)s

-- name: workflow_names
-- Workflows of authors: those whose code an owner has or had, those with instances, and deployed
-- graphs and code.
select distinct on (name) name, params_schema
from (
    select name, params_schema, since from ({declared}) as declared
    union all
    select name, null, '-infinity' from deployment cross join lateral unnest(workflows) as ours (name)
    union all
    select name, null, '-infinity' from workflow_owner cross join lateral unnest(known) as had (name)
    union all
    select name, null, '-infinity' from ({of_instances}) as used
    union all
    select name, document ->> 'inputSchema', deployed_at from graph_definition
) as known
where {of_authors}
order by name, since desc, params_schema is null

-- name: workflow_names_of_instances
-- Skips from name to name along the key, however many instances each has.
with recursive names (name) as (
    select min(workflow_name) from workflow_instance
    union all
    select (select min(workflow_name) from workflow_instance where workflow_name > names.name)
    from names
    where names.name is not null
)
select name from names where {of_authors}

-- name: workflow_run_beginning
-- Where the history of a run begins: for a retry, with the first of the runs that it continues.
with run as (
    select run_number, partition, started_at, run_offset
    from workflow_instance
    where workflow_name = %(workflow_name)s
      and instance_id = %(instance_id)s
      and run_number = %(run_number)s
    union all
    select run_number, partition, started_at, run_offset
    from workflow_run
    where workflow_name = %(workflow_name)s
      and instance_id = %(instance_id)s
      and run_number = %(run_number)s
)
select run.run_number, run.partition, least(run.run_offset, min(before.run_offset)) as "offset"
from run
left join workflow_run before
  on before.workflow_name = %(workflow_name)s
 and before.instance_id = %(instance_id)s
 and before.started_at = run.started_at
group by run.run_number, run.partition, run.run_offset

-- name: workflow_run_start
-- Position of the first record of a run, current or earlier.
select partition, run_offset as "offset"
from workflow_instance
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s
union all
select partition, run_offset as "offset"
from workflow_run
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s

-- name: workflow_current_step
-- The current step is the open one that was reached last; of an errored instance, the errored one.
-- Errors caught by code are before it, and a complete instance has none. A graph has current
-- tokens: those that have not ended, and those with which its run failed.
left join lateral (
    select {step}
    from workflow_step t
    where workflow_name = i.workflow_name
      and instance_id = i.instance_id
      and run_number = i.run_number
      and status in ('pending', 'waiting', 'errored')
      and (status = 'errored') = (i.status = 'errored')
      and i.status <> 'complete'
    order by ordinal desc, sequence desc
    limit 1
) s on true
left join lateral (
    select jsonb_agg(to_jsonb(n) order by n.first) as current_tokens
    from (
        select node_ref, status, count(*) as tokens, min(next_retry_at) as next_retry_at,
               min(wake_at) as wake_at, min(id) as first
        from workflow_token
        where workflow_name = i.workflow_name
          and instance_id = i.instance_id
          and run_number = i.run_number
          and (completed_at is null or status in ('failed', 'timed_out'))
        group by node_ref, status
    ) n
) t on true
-- A run that waits for a slot has not begun; its position in the queue is counted up to some
-- thousands.
left join lateral (
    select to_jsonb(w) as awaited_slot
    from (
        select mine.key, mine.asked_at as since, (
                select count(*)
                from (
                    select
                    from workflow_slot other
                    where other.workflow_name = mine.workflow_name
                      and other.instance_id = mine.instance_id
                      and other.number < mine.number
                      and other.granted_at is null
                    limit 10000
                ) earlier
            ) as before, (
                select (concurrency ->> 'limit')::integer
                from ({declared}) as declared
                where name = i.workflow_name and concurrency is not null
                order by since desc
                limit 1
            ) as "limit"
        from workflow_slot mine
        where mine.workflow_name = i.workflow_name
          and mine.holder_id = i.instance_id
          and mine.holder_run = i.run_number
          and mine.granted_at is null
          and i.status in ('waiting', 'paused')
        limit 1
    ) w
) l on true

-- name: workflow_statuses
select i.workflow_name, i.instance_id, i.status, i.output::text as output, i.error_name,
       i.error_message, i.error_detail::text as error_detail
from unnest(%(workflow_names)s::text[], %(instance_ids)s::text[])
    as requested (workflow_name, instance_id)
join workflow_instance i using (workflow_name, instance_id)

-- name: workflow_steps
select {columns}
from workflow_step t
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s
  and (ordinal, sequence) {beyond} (%(ordinal)s::bigint, %(sequence)s::bigint)
order by ordinal {order}, sequence {order}
limit %(limit)s

-- name: workflow_token_ancestors
-- Tokens of a run and their ancestors, with the transitions that each took since its parent.
with recursive ancestor as (
    select t.id, t.parent_token_id, t.iteration_counts::text as iteration_counts
    from workflow_token t
    where t.workflow_name = %(workflow_name)s
      and t.instance_id = %(instance_id)s
      and t.run_number = %(run_number)s
      and t.id = any(%(ids)s::integer[])
    union
    select t.id, t.parent_token_id, t.iteration_counts::text
    from ancestor a
    join workflow_token t
      on t.workflow_name = %(workflow_name)s
     and t.instance_id = %(instance_id)s
     and t.run_number = %(run_number)s
     and t.id = a.parent_token_id
)
select id, parent_token_id, iteration_counts from ancestor

-- name: workflow_tokens
select {columns}
from workflow_token t
where workflow_name = %(workflow_name)s
  and instance_id = %(instance_id)s
  and run_number = %(run_number)s
  and id {beyond} %(id)s::bigint
order by id {order}
limit %(limit)s

-- name: world_run
-- The current run of an instance by its id alone. There are two if several workflows have the id.
select i.workflow_name, i.instance_id, i.run_number, i.status, i.deployment_id, i.params, i.output,
       i.error_name, i.error_message, i.created_at, i.started_at, i.completed_at
from ({workflows}) as known (name)
join workflow_instance i on i.workflow_name = known.name and i.instance_id = %(run_id)s
order by i.workflow_name
limit 2

-- name: world_entries
-- Entries of a run, and its workflow; a run without entries has one row without an entry.
with run as materialized ({run})
select run.workflow_name, e.*
from run
left join lateral (
    select step_key, name, type, status, attempts, wait_event_type, wake_at, next_retry_at,
           error_name, error_message, {payload} as result, ordinal, sequence, created_at,
           updated_at, last_attempt_at, completed_at
    from workflow_step s
    where s.workflow_name = run.workflow_name
      and s.instance_id = run.instance_id
      and s.run_number = run.run_number
      and s.type = any (%(types)s::text[]) {filter}
      and (ordinal, sequence) > (%(ordinal)s::bigint, %(sequence)s::bigint)
    order by ordinal, sequence
    limit %(limit)s
) e on true
order by run.workflow_name, e.ordinal, e.sequence

-- name: world_events
-- What happened in a run, as events of the World, in the order of their times. Events of one time
-- are ordered by their ranks: what is created begins before it ends.
with run as materialized ({run}),
step as materialized (
    select s.*
    from run
    join workflow_step s
      on s.workflow_name = run.workflow_name
     and s.instance_id = run.instance_id
     and s.run_number = run.run_number
),
event as (
    select created_at as at, 0 as rank, 'run_created' as type, '' as correlation_id,
           jsonb_build_object('workflowName', workflow_name, 'deploymentId', deployment_id) as facts,
           'input' as name, params::text as payload
    from run
    union all
    select started_at, 1, 'run_started', '', null, null, null
    from run
    union all
    select created_at, 2, kind || '_created', step_key, case kind
               when 'step' then jsonb_build_object('stepName', step.name)
               when 'wait' then jsonb_build_object('resumeAt', wake_at)
               else jsonb_build_object('token', wait_event_type)
           end, null, null
    from step
    join ({kinds}) as known (type, kind) using (type)
    union all
    select last_attempt_at, 3, 'step_started', step_key,
           jsonb_build_object('attempt', greatest(attempts, 1)), null, null
    from step
    where type = 'do' and last_attempt_at is not null
    union all
    select e.created_at, 4, 'hook_received', e.type, null, 'payload', e.payload::text
    from run
    join workflow_event e
      on e.workflow_name = run.workflow_name
     and e.instance_id = run.instance_id
     and e.run_number = run.run_number
    union all
    select completed_at, 5, case when status = 'errored' then 'step_failed' else 'step_completed' end,
           step_key, case when status = 'errored' then jsonb_build_object(
               'error', jsonb_build_object('name', error_name, 'message', error_message)) end,
           case when status = 'completed' then 'result' end, result::text
    from step
    where type = 'do' and status in ('completed', 'errored') and completed_at is not null
    union all
    select completed_at, 5, 'wait_completed', step_key, null, null, null
    from step
    where type = 'sleep' and status = 'completed' and completed_at is not null
    union all
    select completed_at, 6, case status
               when 'complete' then 'run_completed'
               when 'errored' then 'run_failed'
               else 'run_cancelled'
           end, '', case when status = 'errored' then jsonb_build_object(
               'error', jsonb_build_object('name', error_name, 'message', error_message)) end,
           case when status = 'complete' then 'output' end, output::text
    from run
    where completed_at is not null
)
select run.workflow_name, e.*
from run
left join lateral (
    select at, rank, type, correlation_id, facts::text as facts, name, {payload} as payload
    from event
    where (at, rank, correlation_id, type) > (
        %(at)s::timestamptz, %(rank)s::integer, %(correlation_id)s::text collate "C",
        %(type)s::text collate "C"
    )
    order by at, rank, correlation_id collate "C", type collate "C"
    limit %(limit)s
) e on true
order by run.workflow_name, e.at, e.rank, e.correlation_id collate "C", e.type collate "C"

-- name: traced_runs
-- Runs for spans, with the context of the run before, in the order of their keys.
select r.*, (
    select before.traceparent
    from workflow_run before
    where before.workflow_name = r.workflow_name
      and before.instance_id = r.instance_id
      and before.run_number = r.run_number - 1
) as previous
from (
    (
        select
            workflow_name, instance_id, run_number, status, error_name, error_message, started_at,
            coalesce(completed_at, updated_at) as ended_at, traceparent, parent_span_id
        from workflow_instance
        where (workflow_name, instance_id, run_number) > (
                %(workflow_name)s::text collate "C", %(instance_id)s::text collate "C", %(run_number)s::integer
            )
          and traceparent is not null
          and updated_at >= %(since)s::timestamptz
          and started_at < %(until)s::timestamptz
        order by workflow_name, instance_id
        limit %(limit)s
    )
    union all
    (
        select
            workflow_name, instance_id, run_number, status, error_name, error_message, started_at,
            coalesce(completed_at, updated_at), traceparent, parent_span_id
        from workflow_run
        where (workflow_name, instance_id, run_number) > (
                %(workflow_name)s::text collate "C", %(instance_id)s::text collate "C", %(run_number)s::integer
            )
          and traceparent is not null
          and updated_at >= %(since)s::timestamptz
          and started_at < %(until)s::timestamptz
        order by workflow_name, instance_id, run_number
        limit %(limit)s
    )
) r
order by workflow_name, instance_id, run_number
limit %(limit)s

-- name: traced_steps
-- Entries of runs of code for spans, in the order of their keys.
select
    s.workflow_name, s.instance_id, s.run_number, s.step_key as key, s.name, s.type, s.status, s.attempts,
    s.error_name, s.error_message, coalesce(s.last_attempt_at, s.created_at) as started_at,
    coalesce(s.completed_at, s.updated_at) as ended_at, coalesce(i.traceparent, r.traceparent) as traceparent
from workflow_step s
left join workflow_instance i using (workflow_name, instance_id, run_number)
left join workflow_run r using (workflow_name, instance_id, run_number)
where (s.workflow_name, s.instance_id, s.run_number, s.step_key) > (
        %(workflow_name)s::text collate "C", %(instance_id)s::text collate "C", %(run_number)s::integer,
        %(key)s::text collate "C"
    )
  and coalesce(i.traceparent, r.traceparent) is not null
  and s.updated_at >= %(since)s::timestamptz
  and s.created_at < %(until)s::timestamptz
order by s.workflow_name, s.instance_id, s.run_number, s.step_key
limit %(limit)s

-- name: traced_tokens
-- Tokens of runs of graphs for spans, in the order of their keys.
select
    t.workflow_name, t.instance_id, t.run_number, t.id::text as key, t.node_ref as name,
    case when t.task is null then 'node' else 'task' end as type, t.status, t.attempts, t.error_name,
    t.error_message, t.created_at as started_at, coalesce(t.completed_at, t.updated_at) as ended_at,
    coalesce(i.traceparent, r.traceparent) as traceparent
from workflow_token t
left join workflow_instance i using (workflow_name, instance_id, run_number)
left join workflow_run r using (workflow_name, instance_id, run_number)
where (t.workflow_name, t.instance_id, t.run_number, t.id) > (
        %(workflow_name)s::text collate "C", %(instance_id)s::text collate "C", %(run_number)s::integer,
        %(key)s::bigint
    )
  and coalesce(i.traceparent, r.traceparent) is not null
  and t.updated_at >= %(since)s::timestamptz
  and t.created_at < %(until)s::timestamptz
order by t.workflow_name, t.instance_id, t.run_number, t.id
limit %(limit)s
