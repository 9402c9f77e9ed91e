-- Outcomes of deliveries, their traces, and records that could not be processed.

create table webhook_outcomes (
    event_id text primary key,
    request_id text not null,
    source text not null,
    type text not null,
    subject text not null,
    user_id text,
    status text not null check (status in ('processed', 'skipped', 'parked', 'dead')),
    reason text not null,
    rows integer not null,
    rejected integer not null,
    rejected_fields jsonb,
    rejected_fields_total integer not null default 0,
    partition integer not null,
    "offset" bigint not null,
    received_at timestamptz not null,
    admitted_at timestamptz not null,
    parked_at timestamptz,
    released_at timestamptz,
    at timestamptz not null,
    stage text not null,
    position text not null,
    replay text not null default '',
    waited_for text not null default '',
    released_by text not null default '',
    trace text not null default '',
    earlier jsonb
);

-- Indexes make the write of every delivery slower, so there is exactly one per query.
create index webhook_outcomes_request on webhook_outcomes using hash (request_id);
create index webhook_outcomes_user on webhook_outcomes (user_id, received_at);
create index webhook_outcomes_received on webhook_outcomes (received_at);
-- The same expression as in the view traces, so that Postgres can match it.
create index webhook_outcomes_dead on webhook_outcomes (received_at)
    where case when status = 'dead' then 'error' else 'info' end = 'error';
-- Few deliveries wait at a time, so the partial index is cheap.
create index webhook_outcomes_parked on webhook_outcomes (parked_at, partition, "offset")
    where status = 'parked';
-- Those that died before their user connected are found by their subject.
create index webhook_outcomes_without_user on webhook_outcomes (subject)
    where status = 'dead' and user_id is null;
-- The latest data of a connection: a user's other connections have sent more since. These are the
-- types of connection_activity.
create index webhook_outcomes_of_connection on webhook_outcomes (user_id, subject, received_at)
    where type in ('activity', 'body', 'daily', 'sleep');
-- Its errors, which are rare and may name no user.
create index webhook_outcomes_errors on webhook_outcomes (subject, received_at)
    where type = 'connection_error';
-- Without statistics, Postgres assumes one in 200 rows per level and reads all rows of a user.
create statistics webhook_outcomes_level
    on (case when status = 'dead' then 'error' else 'info' end) from webhook_outcomes;

comment on table webhook_outcomes is
    'Outcomes of deliveries, with the stages of their processing. Topic webhook-outcomes.';
comment on column webhook_outcomes.event_id is 'The delivery.';
comment on column webhook_outcomes.request_id is 'Id of the HTTP request that brought it.';
comment on column webhook_outcomes.source is 'The source.';
comment on column webhook_outcomes.type is 'The source''s event type.';
comment on column webhook_outcomes.subject is 'The sender''s id of the person.';
comment on column webhook_outcomes.user_id is 'The user, if known.';
comment on column webhook_outcomes.status is 'processed, skipped, parked or dead.';
comment on column webhook_outcomes.reason is
    'Reason for skipped, parked and dead; otherwise empty.';
comment on column webhook_outcomes.rows is 'Number of rows that the delivery set values of.';
comment on column webhook_outcomes.rejected is
    'Number of records of the delivery that were rejected; a dead letter has the details.';
comment on column webhook_outcomes.rejected_fields is
    'Values of the delivery that were dropped, while the rest of their records was stored, at most 50: [{path, reason, count}]. Reasons are not_measured, out_of_range and wrong_type. Null if there were none.';
comment on column webhook_outcomes.rejected_fields_total is
    'Number of values of the delivery that were dropped.';
comment on column webhook_outcomes.partition is 'Partition of the delivery in the topic webhooks.';
comment on column webhook_outcomes."offset" is 'Offset of the delivery in the topic webhooks.';
comment on column webhook_outcomes.received_at is 'When the gateway verified it.';
comment on column webhook_outcomes.admitted_at is 'When it was admitted as no duplicate.';
comment on column webhook_outcomes.parked_at is
    'When it began to wait for its connection; null if it did not wait.';
comment on column webhook_outcomes.released_at is
    'When its connection arrived; null if it did not wait or still waits.';
comment on column webhook_outcomes.at is 'When it got this outcome.';
comment on column webhook_outcomes.stage is 'Stage that recorded the outcome.';
comment on column webhook_outcomes.position is
    'Where that stage read the delivery: topic/partition@offset.';
comment on column webhook_outcomes.replay is
    'Id of the replay, or a position, of a replayed delivery; empty for the original one.';
comment on column webhook_outcomes.waited_for is 'What it waited for; empty if it did not wait.';
comment on column webhook_outcomes.released_by is
    'What ended the wait: topic/partition@offset; empty if nothing has.';
comment on column webhook_outcomes.trace is
    'W3C trace context of the delivery: traceparent and, after a space, tracestate; empty if its trace id is its event id.';
comment on column webhook_outcomes.earlier is
    'Outcomes before replays, oldest first, the last 20: [{status, reason, rows, rejected, rejected_fields, rejected_fields_total, partition, offset, admitted_at, parked_at, released_at, at, stage, position, replay, waited_for, released_by}].';

-- Outcomes of one delivery may be in several partitions, which are read in any order: one records
-- the wait, another the result. An outcome that includes the wait is later than the one that began
-- it, whatever the workers' clocks; of two final outcomes, the later one applies.
create function further_outcome(held webhook_outcomes, came webhook_outcomes)
    returns webhook_outcomes
    language plpgsql immutable
as $$
declare
    further boolean;
    other webhook_outcomes;
begin
    if held.status = 'parked' and came.status <> 'parked' then
        further := came.at >= held.at or coalesce(came.parked_at >= held.parked_at, false);
    elsif came.status = 'parked' and held.status <> 'parked' then
        further := came.at > held.at and not coalesce(held.parked_at >= came.parked_at, false);
    else
        further := (came.at, came.position) >= (held.at, held.position);
    end if;
    came.earlier := held.earlier;
    if further then
        other := held;
        held := came;
    else
        other := came;
    end if;
    if other.status <> 'parked' and other.position <> held.position then
        held.earlier := (
            select jsonb_agg(journey order by at)
            from (
                select journey, (journey ->> 'at')::timestamptz as at
                from jsonb_array_elements(
                    coalesce(held.earlier, '[]') || (
                        to_jsonb(other)
                        - '{event_id, request_id, source, type, subject, user_id, received_at,
                            trace, earlier}'::text[]
                    )
                ) with ordinality as one (journey, number)
                where journey ->> 'position' <> other.position
                   or number > jsonb_array_length(coalesce(held.earlier, '[]'))
                order by at desc
                limit 20
            ) as kept
        );
    end if;
    return held;
end
$$;

comment on function further_outcome(webhook_outcomes, webhook_outcomes) is
    'Which of two outcomes of a delivery is the later one; it keeps the others as earlier outcomes.';

create table duplicates (
    request_id text primary key,
    event_id text not null,
    partition integer not null,
    "offset" bigint not null,
    first_offset bigint not null,
    received_at timestamptz not null,
    at timestamptz not null
);

create index duplicates_received on duplicates (received_at);

comment on table duplicates is
    'Duplicates of admitted deliveries, which were dropped. Topic traces.';
comment on column duplicates.request_id is 'Id of the HTTP request that brought the duplicate.';
comment on column duplicates.event_id is 'The delivery.';
comment on column duplicates.partition is 'Partition of both in the topic webhooks.';
comment on column duplicates."offset" is 'Offset of the duplicate.';
comment on column duplicates.first_offset is 'Offset of the delivery that was admitted.';
comment on column duplicates.received_at is 'When the gateway verified the duplicate.';
comment on column duplicates.at is 'When it was dropped.';

create table request_answers (
    request_id text primary key,
    source text not null,
    code text not null,
    reason text not null,
    detail text not null,
    event_id text not null,
    size bigint not null,
    peer text not null,
    left_out bigint not null,
    at timestamptz not null
);

create index request_answers_at on request_answers (at);

comment on table request_answers is
    'Requests that brought no new delivery: refused ones, handshakes, and duplicates that the gateway recognized. Topic traces.';
comment on column request_answers.request_id is 'Id of the HTTP request.';
comment on column request_answers.source is 'Source of its path; empty if there is none.';
comment on column request_answers.code is
    'duplicate, handshake, or the stable code of the refusal.';
comment on column request_answers.reason is 'Why a signature was refused; otherwise empty.';
comment on column request_answers.detail is 'Reason as text.';
comment on column request_answers.event_id is 'Delivery of a duplicate; otherwise empty.';
comment on column request_answers.size is 'Bytes of its body, if known.';
comment on column request_answers.peer is 'Address of the sender.';
comment on column request_answers.left_out is
    'Earlier refusals with the same source, code, reason and address that were not recorded.';
comment on column request_answers.at is 'When it was answered.';

create function hop(stage text, at timestamptz, "position" text, detail text) returns jsonb
    language sql stable
return jsonb_build_object(
    'stage', stage, 'at_ms', (extract(epoch from at) * 1000)::bigint,
    'position', "position", 'detail', detail
);

comment on function hop(text, timestamptz, text, text) is 'One stage of a trace.';

create function counted(number bigint, noun text) returns text
    language sql immutable
return format('%s %s%s', number, noun, case when number = 1 then '' else 's' end);

comment on function counted(bigint, text) is 'A number with its noun: 1 row, 2 rows.';

create function journey_hops(o webhook_outcomes) returns jsonb
    language sql stable
return
    jsonb_build_array(
        hop(
            'admitted', o.admitted_at, format('webhooks/%s@%s', o.partition, o."offset"),
            case when coalesce(o.replay, '') = '' then '' else format('replay %s', o.replay) end
        )
    )
    || case
        when o.parked_at is null or o.status = 'parked' then '[]'
        else jsonb_build_array(
            hop(
                'parked', o.parked_at, format('webhooks/%s@%s', o.partition, o."offset"),
                coalesce(o.waited_for, '')
            )
        )
    end
    || case
        when o.released_at is null then '[]'
        else jsonb_build_array(hop('released', o.released_at, coalesce(o.released_by, ''), ''))
    end
    || jsonb_build_array(
        hop(
            case when o.status in ('parked', 'dead') then o.status else 'normalized' end,
            o.at,
            o.position,
            case
                when o.rejected > 0 and o.status = 'processed'
                    then format('%s, %s rejected', counted(o.rows, 'row'), counted(o.rejected, 'record'))
                when o.status = 'processed' then counted(o.rows, 'row')
                else format('%s:%s', o.status, o.reason)
            end
        )
    );

comment on function journey_hops(webhook_outcomes) is
    'The stages of a delivery after its receipt, as in traces.';

create table dead_letters (
    partition integer,
    "offset" bigint,
    event_id text,
    request_id text,
    key bytea,
    value bytea,
    headers json not null,
    original_topic text,
    original_partition integer,
    original_offset bigint,
    reason text not null,
    message text,
    stage text,
    rule text,
    dead_at timestamptz not null,
    replayed_at timestamptz,
    expired_at timestamptz,
    primary key (partition, "offset")
);

create index dead_letters_newest on dead_letters (dead_at, partition, "offset");
create index dead_letters_pending on dead_letters (partition, "offset") where replayed_at is null;
create index dead_letters_event on dead_letters (event_id);

comment on table dead_letters is
    'Records that could not be processed, with unchanged key and value. Topic dead-letters.';
comment on column dead_letters.partition is 'Partition in the topic dead-letters.';
comment on column dead_letters."offset" is 'Offset in the topic dead-letters.';
comment on column dead_letters.event_id is 'The delivery, if it could be decoded that far.';
comment on column dead_letters.request_id is
    'Id of the HTTP request, if it could be decoded that far.';
comment on column dead_letters.key is 'The original key.';
comment on column dead_letters.value is 'The original value.';
comment on column dead_letters.headers is 'All headers, in order: [[name, text or null]].';
comment on column dead_letters.original_topic is 'Topic that it was read from.';
comment on column dead_letters.original_partition is 'Partition that it was read from.';
comment on column dead_letters.original_offset is 'Offset that it was read from.';
comment on column dead_letters.reason is 'Stable code of the reason.';
comment on column dead_letters.message is 'Reason as text.';
comment on column dead_letters.stage is 'Stage that failed.';
comment on column dead_letters.rule is
    'The rule or effect that failed, if one did; the delivery itself was processed.';
comment on column dead_letters.dead_at is 'When processing was given up.';
comment on column dead_letters.replayed_at is
    'When it was last put back into its topic; null if never.';
comment on column dead_letters.expired_at is
    'When it was noticed that the topic no longer has it, so that it cannot be put back; null if never.';

create function is_copy(d dead_letters) returns boolean
    language sql stable
return exists (
    select from dead_letters earlier
    where earlier.event_id = d.event_id
      and (earlier.stage, earlier.reason, earlier.rule)
          is not distinct from (d.stage, d.reason, d.rule)
      and earlier.expired_at is null
      and (earlier.dead_at, earlier.partition, earlier."offset")
          < (d.dead_at, d.partition, d."offset")
      and not exists (
          select from dead_letters replayed
          where replayed.event_id = d.event_id
            and (replayed.stage, replayed.reason, replayed.rule)
                is not distinct from (d.stage, d.reason, d.rule)
            and replayed.replayed_at > earlier.dead_at
            and replayed.replayed_at <= d.dead_at
      )
);

comment on function is_copy(dead_letters) is
    'Whether this is a repeated dead letter, written by a worker that was killed and read the delivery again: of a delivery, stage, reason and rule, each one but the first, until one is replayed. Copies are stored but not listed.';

create function was_processed(d dead_letters) returns boolean
    language sql stable
return d.rule is null and exists (
    select from webhook_outcomes o
    where o.event_id = d.event_id
      and o.status in ('processed', 'skipped')
      and o.at > d.dead_at
      -- A worker that was killed reads it again at the same position.
      and o.position <> format('%s/%s@%s', d.original_topic, d.original_partition, d.original_offset)
);

comment on function was_processed(dead_letters) is
    'Whether the delivery of a dead letter was processed since, in whatever way it was replayed. A failed effect is not: its delivery was processed before.';

-- Effects of a delivery on workflows that failed; its rows were written nevertheless.
create function failed_effects(event text) returns jsonb
    language sql stable
return coalesce(
    (
        select
            jsonb_agg(
                hop(
                    'effect_failed', d.dead_at, format('dead-letters/%s@%s', d.partition, d."offset"),
                    format('%s: %s', d.reason, d.message)
                )
                order by d.dead_at
            )
        from dead_letters d
        where d.event_id = event and d.rule is not null and not is_copy(d)
    ),
    '[]'
);

comment on function failed_effects(text) is
    'Effects of rules and normalizers that failed, as stages of a trace.';

-- The request id of a delivery that was read from a topic is its position there.
create function position_of(request_id text) returns text
    language sql immutable
return case when request_id ~ '^[^/]+/[0-9]+@[0-9]+$' then request_id else '' end;

comment on function position_of(text) is
    'The position, topic/partition@offset, of a delivery that came from a topic of another program; else empty.';

-- Each half reads one table, and the columns to filter are plain or constant. So Postgres uses the
-- indexes of the tables, and computes hops only for returned rows.
create view traces as
select
    request_id,
    event_id,
    user_id,
    case when status = 'dead' then 'error' else 'info' end as level,
    jsonb_build_array(hop('received', received_at, position_of(request_id), ''))
    || coalesce(
        (
            select jsonb_agg(hop)
            from jsonb_array_elements(earlier) as one (journey),
                jsonb_array_elements(
                    journey_hops(jsonb_populate_record(null::webhook_outcomes, journey))
                ) as each (hop)
        ),
        '[]'
    )
    || journey_hops(o) || failed_effects(o.event_id) as hops,
    received_at as started_at,
    at as ended_at
from webhook_outcomes o
union all
select
    request_id,
    event_id,
    null,
    'info',
    jsonb_build_array(
        hop('received', received_at, position_of(request_id), ''),
        hop(
            'duplicate', at, format('webhooks/%s@%s', partition, "offset"),
            format('of webhooks/%s@%s', partition, first_offset)
        )
    ),
    received_at,
    at
from duplicates
union all
select
    request_id,
    event_id,
    null,
    'info',
    jsonb_build_array(
        hop('received', at, position_of(request_id), ''),
        hop(
            case when code in ('duplicate', 'handshake') then code else 'refused' end, at, '',
            case
                when code = 'duplicate' then format('of %s', event_id)
                when code = 'handshake' then detail
                when reason = '' then format('%s: %s', code, detail)
                else format('%s:%s: %s', code, reason, detail)
            end
        )
    ),
    at,
    at
from request_answers;

comment on view traces is
    'Traces of all deliveries, of dropped duplicates, and of requests that brought no new delivery.';
comment on column traces.request_id is 'Id of the HTTP request.';
comment on column traces.event_id is 'The delivery.';
comment on column traces.user_id is 'The user, if known.';
comment on column traces.level is 'error if it ended dead, otherwise info.';
comment on column traces.hops is 'The stages, oldest first: [{stage, at_ms, position, detail}].';
comment on column traces.started_at is 'When it was received.';
comment on column traces.ended_at is 'When the last stage ended.';

-- A marker may arrive before its dead letter, because they may be in different partitions.
create table dead_letter_replays (
    partition integer,
    "offset" bigint,
    replayed_at timestamptz not null,
    primary key (partition, "offset")
);

comment on table dead_letter_replays is 'Dead letters that were put back into their topic.';
comment on column dead_letter_replays.partition is 'Partition of the dead letter.';
comment on column dead_letter_replays."offset" is 'Offset of the dead letter.';
comment on column dead_letter_replays.replayed_at is 'When it was put back last.';

-- Accepted deliveries and refused requests in one order.
create view deliveries as
select
    received_at,
    request_id,
    event_id,
    source,
    type,
    subject,
    user_id,
    status,
    reason,
    rows,
    rejected
from webhook_outcomes
union all
select
    at,
    request_id,
    event_id,
    source,
    '',
    '',
    null,
    'refused',
    case when reason = '' then code else format('%s:%s', code, reason) end,
    0,
    0
from request_answers
where code not in ('duplicate', 'handshake');

comment on view deliveries is 'Deliveries with their outcomes, and refused requests.';
comment on column deliveries.received_at is 'When the gateway verified or refused it.';
comment on column deliveries.request_id is 'Id of the HTTP request.';
comment on column deliveries.event_id is 'The delivery; empty if it was refused.';
comment on column deliveries.source is 'The source, or that of the request''s path.';
comment on column deliveries.type is 'The source''s event type; empty if it was refused.';
comment on column deliveries.subject is 'The sender''s id of the person; empty if it was refused.';
comment on column deliveries.user_id is 'The user, if known.';
comment on column deliveries.status is 'processed, skipped, parked, dead or refused.';
comment on column deliveries.reason is 'Reason for all but processed; otherwise empty.';
comment on column deliveries.rows is 'Number of rows that the delivery set values of.';
comment on column deliveries.rejected is 'Number of records of the delivery that were rejected.';

create table effects (
    event_id text,
    name text,
    workflow text not null,
    instance_id text not null,
    event_type text,
    at timestamptz not null,
    primary key (event_id, name)
);

comment on table effects is 'Effects of deliveries on workflows. Topic effects.';
comment on column effects.event_id is 'The delivery.';
comment on column effects.name is 'The rule that matched, or the normalizer''s name of the effect.';
comment on column effects.workflow is 'The workflow.';
comment on column effects.instance_id is 'The instance that was started or got an event.';
comment on column effects.event_type is 'The type of the event; null if the instance was started.';
comment on column effects.at is 'When the effect was decided.';

-- Wiped users and the progress of their wipes, by digest, because nothing may name the users
-- anymore.

create table wipes (
    user_sha256 text,
    partition integer,
    wipe_id text not null,
    found jsonb not null,
    ordered_at timestamptz not null,
    done_at timestamptz,
    primary key (user_sha256, partition)
);

comment on table wipes is 'Wipes of users, by partition. Topic wipes.';
comment on column wipes.user_sha256 is 'SHA-256 of the user id.';
comment on column wipes.partition is 'The partition.';
comment on column wipes.wipe_id is 'The wipe; the same for all partitions.';
comment on column wipes.found is
    'Counts of removed items: {table, raw_events, traces, waiting, effects or dead_letters: number}.';
comment on column wipes.ordered_at is 'When it was requested.';
comment on column wipes.done_at is 'When everything was removed; null before.';
