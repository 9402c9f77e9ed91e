-- The audit log. Each row's hash covers all earlier rows of its project: it is the SHA-256 of the
-- hash of the project's previous row and of the row's entry, in the order of the topic. A
-- comparison with the topic detects changes here; a hash stored elsewhere, or in a signed
-- checkpoint, detects changes in both.

create table audit_logs (
    id text collate "C" primary key,
    key_id text,
    project_id text,
    action text collate "C" not null,
    resource text not null,
    result text not null,
    ip text,
    user_agent text,
    metadata_json text,
    created_at timestamptz not null,
    "offset" bigint not null unique,
    hash bytea not null
);

create index audit_logs_of_project on audit_logs (project_id, "offset");

create index audit_logs_of_action on audit_logs (action, "offset");

create function audit_runs(metadata text) returns text[]
language sql immutable parallel safe
return array(
    select metadata::json ->> 'runId' where metadata::json ->> 'runId' is not null
    union all
    select json_array_elements_text(metadata::json -> 'runIds')
);

comment on function audit_runs(text) is 'The runs of an operation.';

create index audit_logs_of_run on audit_logs using gin (audit_runs(metadata_json));

comment on table audit_logs is 'Operations of holders of API keys, in order. Topic audit.';
comment on column audit_logs.id is 'The entry.';
comment on column audit_logs.key_id is
    'Id of the API key; of a key of the settings its kind, and the beginning of its SHA-256. cli and a user for commands.';
comment on column audit_logs.project_id is 'The project.';
comment on column audit_logs.action is 'The requested operation.';
comment on column audit_logs.resource is 'The path without parts that name a user.';
comment on column audit_logs.result is 'attempted, success or failure.';
comment on column audit_logs.ip is 'Address of the client.';
comment on column audit_logs.user_agent is 'Name of the client program, as it reports it.';
comment on column audit_logs.metadata_json is 'Additional data: a JSON object.';
comment on column audit_logs.created_at is 'When it was done, by the clock of the process.';
comment on column audit_logs."offset" is 'Offset of its record in audit.';
comment on column audit_logs.hash is
    'SHA-256 of the hash of the project''s previous row (32 zeros before the first) and of the entry.';

create function audit_link(held bytea, before bytea, entry text) returns bytea
language sql immutable parallel safe
return sha256(coalesce(held, before) || convert_to(entry, 'UTF8'));

comment on function audit_link(bytea, bytea, text) is
    'The hash of an entry, from the previous hash.';

create aggregate audit_chain(before bytea, entry text) (
    sfunc = audit_link,
    stype = bytea
);

comment on aggregate audit_chain(bytea, text) is
    'The hash of the last of some entries, from the hash before the first.';
