-- A listener is one place where deployments run; it introduces itself and is known by its compute id.
create table listeners (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    compute_type text not null,
    compute_id text not null,
    version text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    last_seen_at timestamptz not null default now(),
    unique (workspace_id, compute_id)
);

-- A name is taken until the deployment's compute is gone, so that a successor never shares its tracing project.
-- The service key is sealed for the deployment's id: what runs sends its traces with it.
create table deployments (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    name text not null,
    display_name text,
    source text not null,
    integration_id uuid,
    repo_url text not null,
    deployment_type text,
    build_on_push boolean not null default false,
    install_command text,
    build_command text,
    custom_url text,
    status text not null,
    status_message text,
    latest_revision_id uuid,
    active_revision_id uuid,
    tracing_project_id uuid not null,
    delete_tracing_project boolean not null default false,
    service_key_id uuid not null references api_keys (id),
    service_key_sealed bytea not null,
    held_by uuid references listeners (id),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (workspace_id, name)
);

create index deployments_newest on deployments (workspace_id, created_at desc, id desc);
create index deployments_held_by on deployments (held_by);

-- Secrets are sealed for the revision's id.
create table revisions (
    id uuid primary key,
    deployment_id uuid not null references deployments (id) on delete cascade,
    number int not null,
    status text not null,
    status_message text,
    source text not null,
    repo_ref text not null,
    repo_commit_sha text,
    graph_config_path text not null,
    secrets_sealed bytea not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (deployment_id, number)
);

-- What the code promises, held by the database too: one revision at work and one waiting.
create unique index revisions_at_work on revisions (deployment_id)
    where status in ('CREATING', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING');
create unique index revisions_waiting on revisions (deployment_id) where status = 'QUEUED';

create table revision_logs (
    id bigint generated always as identity primary key,
    deployment_id uuid not null references deployments (id) on delete cascade,
    revision_id uuid not null references revisions (id) on delete cascade,
    type text not null,
    at timestamptz not null,
    level text not null,
    message text not null
);

create index revision_logs_of_revision on revision_logs (revision_id, type, id);
create index revision_logs_of_deployment on revision_logs (deployment_id, type, id);

-- Counts the changes of a workspace's desired state. A row and not a sequence: its lock makes changes commit in the
-- order of their numbers, so that a listener that has seen a number has seen everything before it.
create table desired_generations (
    workspace_id uuid primary key references workspaces (id),
    generation bigint not null
);
