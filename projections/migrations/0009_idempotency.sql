-- Keys under which callers ask for runs, so that each is made once. This table is no projection: Kafka
-- holds the runs, and each run the key that made it, but not the answers that are repeated to callers. A
-- rebuild leaves it as it is. A row is forgotten after a day, and goes when later ones come.

create table idempotency (
    project_id text collate "C",
    idempotency_key text collate "C",
    endpoint text collate "C",
    status_code integer not null,
    body text not null,
    created_at bigint not null,
    state text not null check (state in ('in_progress', 'completed', 'refused')),
    request_hash text not null,
    response_run_id text not null,
    primary key (project_id, idempotency_key, endpoint)
);

create index idempotency_oldest on idempotency (created_at);

comment on table idempotency is
    'Requests that are done once however often they are sent, for a day. Postgres alone has them.';
comment on column idempotency.project_id is 'The project.';
comment on column idempotency.idempotency_key is 
    'The key as the caller chose it; before it, and a space, what tells callers apart.';
comment on column idempotency.endpoint is 'What was asked for under it.';
comment on column idempotency.status_code is 'Status of the answer; 0 while there is none.';
comment on column idempotency.body is 'The answer, repeated as it is; empty while there is none.';
comment on column idempotency.created_at is 'When it came, Unix milliseconds, by the clock of Postgres.';
comment on column idempotency.state is 
    'in_progress; completed; or refused, and free for another request.';
comment on column idempotency.request_hash is
    'SHA-256 of what was asked for, as canonical JSON; in queues and events of the workflow alone.';
comment on column idempotency.response_run_id is 'The run that it makes: reserved before it is made.';
