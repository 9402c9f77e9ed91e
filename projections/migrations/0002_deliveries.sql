-- What became of every delivery, how it travelled, and what could not be processed.

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
    partition integer not null,
    "offset" bigint not null,
    received_at timestamptz not null,
    at timestamptz not null
);

-- Most deliveries are processed; only what somebody may have to look at is worth an index.
create index webhook_outcomes_open on webhook_outcomes (status, at)
    where status in ('dead', 'parked');
create index webhook_outcomes_request on webhook_outcomes (request_id);
create index webhook_outcomes_user on webhook_outcomes (user_id, at);

comment on table webhook_outcomes is 'What became of a delivery. Topic webhook-outcomes.';
comment on column webhook_outcomes.event_id is 'The delivery.';
comment on column webhook_outcomes.request_id is 'Id of the HTTP request that brought it.';
comment on column webhook_outcomes.source is 'Producer.';
comment on column webhook_outcomes.type is 'The producer''s event type.';
comment on column webhook_outcomes.subject is 'Whom it is about.';
comment on column webhook_outcomes.user_id is 'Whose it is, when known.';
comment on column webhook_outcomes.status is 'processed, skipped, parked or dead.';
comment on column webhook_outcomes.reason is 'Why, for skipped, parked and dead; else empty.';
comment on column webhook_outcomes.rows is 'How many rows the delivery touched.';
comment on column webhook_outcomes.partition is 'Partition of the delivery in the topic webhooks.';
comment on column webhook_outcomes."offset" is 'Offset of the delivery in the topic webhooks.';
comment on column webhook_outcomes.received_at is 'When the gateway verified it.';
comment on column webhook_outcomes.at is 'When this became true.';

create table traces (
    request_id text primary key,
    event_id text not null,
    user_id text,
    level text not null,
    hops jsonb not null,
    started_at timestamptz,
    ended_at timestamptz
);

create index traces_user on traces (user_id, started_at);
create index traces_level on traces (level, started_at);
create index traces_started on traces (started_at);

comment on table traces is 'A delivery''s journey. Topic traces.';
comment on column traces.request_id is 'Id of the HTTP request.';
comment on column traces.event_id is 'The delivery.';
comment on column traces.user_id is 'Whose it is, when known.';
comment on column traces.level is 'info, or error when it ended dead.';
comment on column traces.hops is
    'The journey, oldest stage first: [{stage, at_ms, position, detail}].';
comment on column traces.started_at is 'When the first stage was done.';
comment on column traces.ended_at is 'When the last stage was done.';

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
    dead_at timestamptz not null,
    replayed_at timestamptz,
    primary key (partition, "offset")
);

create index dead_letters_newest on dead_letters (dead_at, partition, "offset");
create index dead_letters_pending on dead_letters (partition, "offset") where replayed_at is null;
create index dead_letters_request on dead_letters (request_id);

comment on table dead_letters is
    'What could not be processed, key and value untouched. Topic dead-letters.';
comment on column dead_letters.partition is 'Partition in the topic dead-letters.';
comment on column dead_letters."offset" is 'Offset in the topic dead-letters.';
comment on column dead_letters.event_id is 'The delivery, when it could be read that far.';
comment on column dead_letters.request_id is
    'Id of the HTTP request, when it could be read that far.';
comment on column dead_letters.key is 'The original key.';
comment on column dead_letters.value is 'The original value.';
comment on column dead_letters.headers is 'All headers, in order: [[name, text or null]].';
comment on column dead_letters.original_topic is 'Topic it was read from.';
comment on column dead_letters.original_partition is 'Partition it was read from.';
comment on column dead_letters.original_offset is 'Offset it was read from.';
comment on column dead_letters.reason is 'Stable code of why.';
comment on column dead_letters.message is 'Why, for people.';
comment on column dead_letters.stage is 'The stage that gave up.';
comment on column dead_letters.dead_at is 'When it gave up.';
comment on column dead_letters.replayed_at is 'When it was last put back into its topic; null if never.';

-- A marker can arrive before the dead letter that it names: they may lie in different partitions.
create table dead_letter_replays (
    partition integer,
    "offset" bigint,
    replayed_at timestamptz not null,
    primary key (partition, "offset")
);

comment on table dead_letter_replays is 'Which dead letters were put back into their topic.';
comment on column dead_letter_replays.partition is 'Partition of the dead letter.';
comment on column dead_letter_replays."offset" is 'Offset of the dead letter.';
comment on column dead_letter_replays.replayed_at is 'When, the last time.';
