-- The current step is the open one that was reached last; of an errored instance, the errored one.
-- Errors caught by code are before it, and a complete instance has none. A graph has current
-- tokens: those that have not ended, and those with which its run failed.
left join lateral (
    select step_key, name, type, status, attempts, max_attempts, timeout_ms, next_retry_at,
           wake_at, wait_event_type, last_attempt_at, error_name, error_message,
           error_detail::text as error_detail
    from workflow_step
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
