-- One organization has workspaces and users; a key belongs to the organization and acts in one workspace.
create table organizations (
    id uuid primary key,
    display_name text not null,
    created_at timestamptz not null default now()
);

-- A deleted workspace keeps its row, because old bills name it. From `deleted_at` on, no request may use it; `emptied_at`
-- is when everything that belonged to it was deleted.
create table workspaces (
    id uuid primary key,
    organization_id uuid not null references organizations (id),
    display_name text not null,
    tenant_handle text not null unique,
    created_at timestamptz not null default now(),
    deleted_at timestamptz,
    emptied_at timestamptz
);

create index workspaces_to_empty on workspaces (deleted_at) where deleted_at is not null and emptied_at is null;

create table users (
    id uuid primary key,
    organization_id uuid not null references organizations (id),
    email text not null unique,
    full_name text,
    password bytea,
    created_at timestamptz not null default now(),
    removed_at timestamptz
);

-- The members of an organization and of its workspaces, with their roles. The code defines the permissions of a role.
create table organization_members (
    organization_id uuid not null references organizations (id),
    user_id uuid not null references users (id),
    role text not null,
    created_at timestamptz not null default now(),
    primary key (organization_id, user_id)
);

create table workspace_members (
    workspace_id uuid not null references workspaces (id),
    user_id uuid not null references users (id),
    role text not null,
    created_at timestamptz not null default now(),
    primary key (workspace_id, user_id)
);

create index workspace_members_of_user on workspace_members (user_id);

-- Keys are random and long, so a plain SHA-256 is enough; the key itself is shown once and never stored.
-- A service key without a workspace belongs to the organization, or to the `workspaces` that it names. A user's key starts
-- in one workspace and may switch to any that the user may use.
-- `used_by` names the part of the platform that uses the key; it is null for keys that people made. Revoking such a key
-- needs `force`.
create table api_keys (
    id uuid primary key,
    organization_id uuid not null references organizations (id),
    workspace_id uuid references workspaces (id),
    workspaces uuid[],
    user_id uuid references users (id),
    description text not null,
    short_key text not null,
    key_hash bytea not null unique,
    permissions text[] not null,
    read_only boolean not null default false,
    used_by text,
    created_at timestamptz not null default now(),
    last_used_at timestamptz,
    expires_at timestamptz,
    revoked_at timestamptz
);

create index api_keys_of_workspace on api_keys (workspace_id, created_at);
create index api_keys_of_organization on api_keys (organization_id, created_at) where workspace_id is null;
create index api_keys_of_user on api_keys (user_id) where user_id is not null;

-- Sessions of people. The token is random and long, and only its hash is stored, as with keys.
create table logins (
    id uuid primary key,
    user_id uuid not null references users (id),
    token_hash bytea not null unique,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null
);

create index logins_of_user on logins (user_id);
create index logins_by_end on logins (expires_at);
