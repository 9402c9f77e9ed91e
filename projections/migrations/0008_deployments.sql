-- Deployments of code, and the active one. The routes read the topic itself and are never behind.

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

comment on table deployment is 'Deployed code. Topic deployments.';
comment on column deployment.id is 'The deployment, identified by its content.';
comment on column deployment.app is 'The app in the artifact.';
comment on column deployment.digest is 'SHA-256 of the artifact.';
comment on column deployment.size is 'Bytes of the artifact.';
comment on column deployment.workflows is 'Names of the workflows in it.';
comment on column deployment.params_schemas is
    'JSON Schemas of parameters, as text by workflow, for those that declare a type.';
comment on column deployment.limits is
    'Concurrency limits by workflow, for those that have one: {"limit": 3, "key": "params.region"}.';
comment on column deployment.created_by is 'Id of the API key that deployed it.';
comment on column deployment.created_at is 'When it was deployed, by the deployer''s clock.';
comment on column deployment.activated_by is
    'Id of the API key that activated it last; null if it never was active.';
comment on column deployment.activated_at is
    'When it was activated last; null if it never was active.';
comment on column deployment."offset" is 'Offset of the latest record about it, in deployments.';

create table retired_deployment (
    id text collate "C" primary key,
    stage text not null,
    closing text not null,
    retired_by text not null,
    retired_at timestamptz not null,
    "offset" bigint not null
);

comment on table retired_deployment is
    'Deployments that are being removed or were removed. Ended runs of them stay. Topic deployments.';
comment on column retired_deployment.id is 'The deployment.';
comment on column retired_deployment.stage is
    'closed: no new run begins on it. removed: its artifact and its declarations are deleted.';
comment on column retired_deployment.closing is
    'Identifies the removal, from the closing to the end.';
comment on column retired_deployment.retired_by is 'Id of the API key that requested it.';
comment on column retired_deployment.retired_at is 'When, by the clock of the gateway.';
comment on column retired_deployment."offset" is 'Offset of the latest record about it, in deployments.';

create table settings (
    key text collate "C" primary key,
    value text not null
);

comment on table settings is
    'Settings of the whole system: active_deployment is the deployment on which new runs begin, except for shared_percent of them, which begin on shared_deployment. Topic deployments.';
comment on column settings.key is 'The setting.';
comment on column settings.value is 'Its value.';
