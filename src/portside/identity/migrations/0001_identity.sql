-- One organization holds workspaces and users; a key belongs to the organization and acts in one workspace.
create table organizations (
    id uuid primary key,
    display_name text not null,
    created_at timestamptz not null default now()
);

create table workspaces (
    id uuid primary key,
    organization_id uuid not null references organizations (id),
    display_name text not null,
    tenant_handle text not null unique,
    created_at timestamptz not null default now()
);

create table users (
    id uuid primary key,
    organization_id uuid not null references organizations (id),
    email text not null unique,
    created_at timestamptz not null default now()
);

-- Keys are random and long, so a plain SHA-256 is enough to store; the key itself is shown once and never kept.
create table api_keys (
    id uuid primary key,
    organization_id uuid not null references organizations (id),
    workspace_id uuid not null references workspaces (id),
    user_id uuid references users (id),
    description text not null,
    short_key text not null,
    key_hash bytea not null unique,
    permissions text[] not null,
    created_at timestamptz not null default now(),
    last_used_at timestamptz,
    expires_at timestamptz,
    revoked_at timestamptz
);

create index api_keys_of_workspace on api_keys (workspace_id, created_at);
