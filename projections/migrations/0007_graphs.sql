-- Deployed graphs. A version appears when its record is applied; the routes of graphs read the
-- topic itself and are never behind.

create table graph_definition (
    name text collate "C",
    version integer,
    digest text not null,
    document json not null,
    app text,
    deployed_at timestamptz not null,
    "offset" bigint not null,
    primary key (name, version)
);

comment on table graph_definition is 'Versions of deployed graphs. Topic graph-definitions.';
comment on column graph_definition.name is 'The name of the graph.';
comment on column graph_definition.version is
    'The version, numbered from 1 without gaps; new runs use the newest.';
comment on column graph_definition.digest is 'SHA-256 of the definition in its canonical form.';
comment on column graph_definition.document is 'The complete definition.';
comment on column graph_definition.app is 'The app that declares it; null if it was deployed over HTTP.';
comment on column graph_definition.deployed_at is 'When it was deployed, by the deployer''s clock.';
comment on column graph_definition."offset" is 'Offset of its record in graph-definitions.';

create table graph_app (
    name text collate "C" primary key,
    app text,
    deployment text,
    moves integer not null
);

comment on table graph_app is
    'Names that apps own for their workflows, permanently or while a deployment is active: only the app deploys graphs under them. Topic graph-definitions.';
comment on column graph_app.name is 'The name of a graph, or of a workflow of code.';
comment on column graph_app.app is
    'The app that declares it; null if a deployment declared it and released it.';
comment on column graph_app.deployment is
    'The active deployment that declares it; null for an app that workers were started with.';
comment on column graph_app.moves is
    'Number of activations of deployments when the app declared it.';
