-- API keys. Gateways read the topic itself; this table is for reading.

create table api_keys (
    id text collate "C" primary key,
    project_id text not null,
    name text not null,
    role text,
    scopes text[] not null,
    rate_limit integer,
    created_by text not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    rotated_by text,
    rotated_at timestamptz,
    previous_until timestamptz,
    revoked_by text,
    revoked_at timestamptz,
    last_used_at timestamptz,
    "offset" bigint not null
);

comment on table api_keys is 'API keys, without their secrets. Topic api-keys.';
comment on column api_keys.id is 'The key; part of its text.';
comment on column api_keys.project_id is 'The project that it is valid in.';
comment on column api_keys.name is 'Name for people.';
comment on column api_keys.role is 'Its role, a named set of scopes; null for none.';
comment on column api_keys.scopes is 'Its scopes besides those of the role.';
comment on column api_keys.rate_limit is
    'Requests per minute; null for the limit of the settings.';
comment on column api_keys.created_by is 'Id of the key that created it.';
comment on column api_keys.created_at is 'When it was created, by the gateway''s clock.';
comment on column api_keys.expires_at is 'When it expires; null for never.';
comment on column api_keys.rotated_by is 'Id of the key that rotated it last; null if none did.';
comment on column api_keys.rotated_at is 'When it was rotated last; null if never.';
comment on column api_keys.previous_until is
    'Until when the text from before the last rotation is accepted; null if there was none.';
comment on column api_keys.revoked_by is 'Id of the key that revoked it; null if none did.';
comment on column api_keys.revoked_at is 'When it was revoked; null if it was not.';
comment on column api_keys.last_used_at is
    'Begin of the hour in which it was used last; null if never.';
comment on column api_keys."offset" is 'Offset of the latest record about it, in api-keys.';
