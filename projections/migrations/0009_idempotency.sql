-- Idempotency keys of requests for runs, so that each run is created once. This table is no
-- projection: Kafka has the runs and their keys, but not the responses that are repeated to
-- callers. A rebuild does not change it. A row expires after a day and is deleted when later ones
-- are inserted.

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

comment on table idempotency is 'Requests with an idempotency key, for a day. Only in Postgres.';
comment on column idempotency.project_id is 'The project.';
comment on column idempotency.idempotency_key is
    'The caller''s key, after a prefix that identifies the caller and a space.';
comment on column idempotency.endpoint is 'The requested endpoint.';
comment on column idempotency.status_code is 'Status of the response; 0 before there is one.';
comment on column idempotency.body is
    'The response, which is repeated unchanged; empty before there is one.';
comment on column idempotency.created_at is
    'When the request arrived, Unix milliseconds, by the clock of Postgres.';
comment on column idempotency.state is
    'in_progress; completed; or refused, and free for another request.';
comment on column idempotency.request_hash is
    'SHA-256 of the request as canonical JSON; for queues and events, of the workflow''s name only.';
comment on column idempotency.response_run_id is
    'The run that the request creates: reserved before the run exists.';
