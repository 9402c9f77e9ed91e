-- The deployments of code, and which of them is active. The routes read the topic itself, and so are
-- never behind.

create table deployment (
    id text collate "C" primary key,
    app text not null,
    digest text not null,
    size bigint not null,
    workflows text[] not null,
    params_schemas json not null,
    limits json not null,
    created_by text not null,
    created_at timestamptz not null,
    activated_by text,
    activated_at timestamptz,
    "offset" bigint not null
);

comment on table deployment is 'The code that was deployed. Topic deployments.';
comment on column deployment.id is 'The deployment, named by what is in it.';
comment on column deployment.app is 'The app in the artifact.';
comment on column deployment.digest is 'SHA-256 of the artifact.';
comment on column deployment.size is 'Bytes of the artifact.';
comment on column deployment.workflows is 'What new runs may be of.';
comment on column deployment.params_schemas is
    'JSON Schemas of their params, as texts by name, of those that declare a type for them.';
comment on column deployment.limits is
    'Limits of their concurrency by name, of those that have one: {"limit": 3, "key": "params.region"}.';
comment on column deployment.created_by is 'The id of the key that deployed it.';
comment on column deployment.created_at is 'When it was deployed, by the clock of whoever did.';
comment on column deployment.activated_by is 'The id of the key that activated it last; null if it never was.';
comment on column deployment.activated_at is 'When it was activated last; null if it never was.';
comment on column deployment."offset" is 'Offset in deployments of the latest record about it.';

create table settings (
    key text collate "C" primary key,
    value text not null
);

comment on table settings is
    'What holds for the whole house: active_deployment is the deployment that new runs begin on. Topic deployments.';
comment on column settings.key is 'The setting.';
comment on column settings.value is 'Its value.';
