-- Changes of an instance's current run after an offset, in the order of the log. A page ends with a
-- whole record: "through" is the last record whose changes fit, or the first record.
with instance as materialized (
    select run_number, run_offset, partition, "offset" as latest,
           lpad(partition::text, 5, '0') || '-' as lines
    from workflow_instance
    where workflow_name = %(workflow_name)s and instance_id = %(instance_id)s
),
changed as (
    (
        select "offset"
        from workflow_step
        where workflow_name = %(workflow_name)s
          and instance_id = %(instance_id)s
          and run_number = (select run_number from instance)
          and "offset" > %(after)s::bigint
        order by "offset"
        limit %(limit)s::bigint + 1
    )
    union all
    (
        select "offset"
        from workflow_token
        where workflow_name = %(workflow_name)s
          and instance_id = %(instance_id)s
          and run_number = (select run_number from instance)
          and "offset" > %(after)s::bigint
          and "offset" >= 0
        order by "offset"
        limit %(limit)s::bigint + 1
    )
    union all
    (
        select "offset"
        from workflow_event
        where workflow_name = %(workflow_name)s
          and instance_id = %(instance_id)s
          and run_number = (select run_number from instance)
          and "offset" > %(after)s::bigint
        order by "offset"
        limit %(limit)s::bigint + 1
    )
    union all
    (
        select substr(id, 7, 15)::bigint
        from workflow_log
        where workflow_name = %(workflow_name)s
          and instance_id = %(instance_id)s
          and run_number = (select run_number from instance)
          and id >= (
              select lines || lpad((%(after)s::bigint + 1)::text, 15, '0') from instance
          ) collate "C"
        order by id
        limit %(limit)s::bigint + 1
    )
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
),
steps as (
    select "offset", 1 as rank, ordinal as first, sequence as second, row_to_json(s) as row
    from (
        select workflow_name, instance_id, run_number,
               step_key, name, type, status, attempts, max_attempts, timeout_ms,
               next_retry_at, wake_at, wait_event_type, child_workflow_name, child_instance_id,
               result::text as result, error_name, error_message,
               error_detail::text as error_detail, ordinal, sequence, created_at, updated_at,
               last_attempt_at, completed_at, rolled_back_at, rollback_failed_at, trimmed_before, "offset"
        from workflow_step
        where workflow_name = %(workflow_name)s
          and instance_id = %(instance_id)s
          and run_number = (select run_number from page)
          and "offset" > %(after)s::bigint
          and "offset" <= (select through from page)
    ) s
),
tokens as (
    select "offset", 2 as rank, id as first, 0::bigint as second, row_to_json(t) as row
    from (
        select workflow_name, instance_id, run_number,
               id, node_ref, task, subworkflow, status, path_id, parent_token_id, sibling_group, branch_index,
               branch_total, iteration_counts, attempts, input::text as input, result::text as result,
               error_name, error_message, error_detail::text as error_detail, next_retry_at, wake_at, reason,
               child_workflow_name, child_instance_id, created_at, updated_at, completed_at, worker, lease_until, "offset"
        from workflow_token
        where workflow_name = %(workflow_name)s
          and instance_id = %(instance_id)s
          and run_number = (select run_number from page)
          and "offset" > %(after)s::bigint
          and "offset" >= 0
          and "offset" <= (select through from page)
    ) t
),
events as (
    select "offset", 3 as rank, sequence as first, 0::bigint as second, row_to_json(e) as row
    from (
        select workflow_name, instance_id, run_number,
               id, type, payload::text as payload, sequence, created_at, delivered_at,
               consumed_by_step_key, "offset"
        from workflow_event
        where workflow_name = %(workflow_name)s
          and instance_id = %(instance_id)s
          and run_number = (select run_number from page)
          and "offset" > %(after)s::bigint
          and "offset" <= (select through from page)
    ) e
),
lines as (
    select substr(id, 7, 15)::bigint, 4 as rank, substr(id, 23)::bigint as first,
           0::bigint as second, row_to_json(l) as row
    from (
        select workflow_name, instance_id, run_number,
               id, step_key, attempt, level, category, message, data::text as data,
               is_replay, created_at
        from workflow_log
        where workflow_name = %(workflow_name)s
          and instance_id = %(instance_id)s
          and run_number = (select run_number from page)
          and id >= (
              select p.lines || lpad((%(after)s::bigint + 1)::text, 15, '0') from page p
          ) collate "C"
          and id < (
              select p.lines || lpad((p.through + 1)::text, 15, '0') from page p
          ) collate "C"
    ) l
),
instances as (
    select "offset", 5 as rank, 0::bigint as first, 0::bigint as second, row_to_json(i) as row
    from (
        select workflow_name, instance_id, run_number,
               status, output::text as output, error_name,
               error_message, error_detail::text as error_detail, created_at, updated_at,
               started_at, completed_at, partition, "offset"
        from workflow_instance
        where workflow_name = %(workflow_name)s
          and instance_id = %(instance_id)s
          and "offset" > %(after)s::bigint
          and "offset" <= (select through from page)
    ) i
)
select p.run_number, p.run_offset, p.through, p.through < p.latest as more, c."offset", c.rank,
       c.row::text as row
from page p
left join (
    select * from steps
    union all
    select * from tokens
    union all
    select * from events
    union all
    select * from lines
    union all
    select * from instances
) c on true
order by c."offset", c.rank, c.first, c.second
