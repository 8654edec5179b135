-- A listener runs deployments in one place: a machine or a Kubernetes cluster. It registers with its compute id. A client
-- creates a Kubernetes listener before it connects for the first time, so `last_seen_at` may be null.
create table listeners (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    compute_type text not null,
    compute_id text not null,
    compute_config jsonb not null default '{}',
    version text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    last_seen_at timestamptz,
    unique (workspace_id, compute_id)
);

-- A name stays taken until the deployment's compute is deleted, so that a successor never shares its tracing project.
-- `service_key_sealed` is encrypted for the deployment's id: the deployment sends its traces with this key.
-- `secrets_sealed` is encrypted likewise and contains the secrets from before the first revision.
-- `listener_id` and `requested_url` are what the user asked for; `assigned_listener_id` and `custom_url` are where the
-- deployment runs and answers.
-- The scale columns are the limits that the owner set; null leaves them to the revision and the deployment's type.
create table deployments (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    name text not null,
    display_name text,
    deployment_type text,
    status text not null,
    status_message text,
    latest_revision_id uuid,
    active_revision_id uuid,
    source text not null,
    integration_id uuid,
    repo_url text,
    build_on_push boolean not null default false,
    install_command text,
    build_command text,
    secrets_sealed bytea,
    listener_id uuid references listeners (id),
    assigned_listener_id uuid references listeners (id),
    k8s_namespace text,
    requested_url text,
    custom_url text,
    min_scale int,
    max_scale int,
    queue_min_scale int,
    queue_max_scale int,
    tracing_project_id uuid not null,
    delete_tracing_project boolean not null default false,
    service_key_id uuid not null references api_keys (id),
    service_key_sealed bytea not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (workspace_id, name)
);

create index deployments_newest on deployments (workspace_id, created_at desc, id desc);
create index deployments_of_listener on deployments (assigned_listener_id);
create index deployments_of_integration on deployments (integration_id) where integration_id is not null;

create trigger refuse_deleted_workspace before insert on deployments
    for each row execute function refuse_deleted_workspace();

-- Everything that a revision is made of is stored with it, so that it can be served again later.
-- `is_built` says that the revision's build has finished, so that it can be served again without another build;
-- `built_from` is the revision that the build belongs to. Secrets are encrypted for the revision's id.
create table revisions (
    id uuid primary key,
    deployment_id uuid not null references deployments (id) on delete cascade,
    number int not null,
    status text not null,
    status_message text,
    source text not null,
    repo_ref text,
    repo_commit_sha text,
    graph_config_path text,
    source_tarball_path text,
    image_uri text,
    image_version text,
    install_command text,
    build_command text,
    secrets_sealed bytea not null,
    secret_references jsonb,
    resource_spec jsonb,
    built_from uuid,
    is_built boolean not null default false,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (deployment_id, number)
);

-- The code guarantees one revision in progress and one queued; the database enforces it as well.
create unique index revisions_in_progress on revisions (deployment_id)
    where status in ('CREATING', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING');
create unique index revisions_queued on revisions (deployment_id) where status = 'QUEUED';

-- Every status that a revision has had, with the reason and the time. A trigger writes the rows, so that no statement that
-- changes a status can forget to.
create table revision_transitions (
    id bigint generated always as identity primary key,
    revision_id uuid not null references revisions (id) on delete cascade,
    status text not null,
    reason text,
    at timestamptz not null
);

create index revision_transitions_of_revision on revision_transitions (revision_id, id);

create trigger record_new_revision after insert on revisions
    for each row execute function record_revision_transition();
create trigger record_revision_transition after update of status on revisions
    for each row when (old.status is distinct from new.status) execute function record_revision_transition();

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

-- Counts the changes of a workspace's desired state. A row and not a sequence: its lock makes changes commit in the order of
-- their numbers, so a listener that has seen a number has seen all changes before it.
create table desired_generations (
    workspace_id uuid primary key references workspaces (id),
    generation bigint not null
);

-- What a listener measured of a deployment the last time.
create table deployment_metrics (
    deployment_id uuid primary key references deployments (id) on delete cascade,
    measured_at timestamptz not null,
    metrics jsonb not null
);

-- Uploaded source archives: the deployment that an archive is for, and whether a revision uses it. The content is in the
-- archive store. A random token opens the upload address, so a plain SHA-256 of it is enough to store.
create table source_archives (
    id uuid primary key,
    deployment_id uuid not null references deployments (id) on delete cascade,
    token_hash bytea not null,
    expires_at timestamptz not null,
    uploaded_at timestamptz,
    size_bytes bigint,
    used_at timestamptz,
    created_at timestamptz not null default now()
);

create index source_archives_of_deployment on source_archives (deployment_id, created_at);
create index source_archives_unused on source_archives (created_at) where used_at is null;

-- Accounts at git hosts. The token and the webhook secret are encrypted for the integration's id, and never shown again.
create table integrations (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    installation_id bigint generated always as identity unique,
    kind text not null,
    name text not null,
    base_url text not null,
    token_sealed bytea,
    webhook_secret_sealed bytea,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (workspace_id, name)
);

-- Push webhooks that were handled, so that a repeated delivery is ignored.
create table push_deliveries (
    integration_id uuid not null references integrations (id) on delete cascade,
    delivery_id text not null,
    received_at timestamptz not null default now(),
    primary key (integration_id, delivery_id)
);

create index push_deliveries_oldest on push_deliveries (received_at);

-- When the branch of a deployment that builds on push was last polled, and its newest commit then. A change of the branch
-- (`last_ref`) makes the commit count as unknown.
create table branch_polls (
    deployment_id uuid primary key references deployments (id) on delete cascade,
    polled_at timestamptz not null,
    last_ref text,
    last_commit text,
    failure text
);

-- A value that only the right master key decrypts, so that a wrong one is found at start and not with the first secret.
create table master_key_check (
    is_only boolean primary key default true check (is_only),
    id uuid not null,
    check_sealed bytea not null
);
