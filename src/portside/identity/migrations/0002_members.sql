-- Who belongs to an organization and to its workspaces, and as what; the roles' permissions are in the program.
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

alter table users add column full_name text, add column password bytea, add column removed_at timestamptz;

-- Whoever was there before there were roles made the place.
insert into organization_members (organization_id, user_id, role)
select organization_id, id, 'Organization Admin' from users;

-- A service key without a workspace belongs to the organization, or to those of its workspaces that it names. A user's
-- key begins in a workspace and may go wherever the user may.
alter table api_keys
    alter column workspace_id drop not null,
    add column workspaces uuid[],
    add column read_only boolean not null default false;

create index api_keys_of_organization on api_keys (organization_id, created_at) where workspace_id is null;
create index api_keys_of_user on api_keys (user_id) where user_id is not null;

-- People who logged in. The token is random and long, and only its hash is kept, as with keys.
create table logins (
    id uuid primary key,
    user_id uuid not null references users (id),
    token_hash bytea not null unique,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null
);

create index logins_of_user on logins (user_id);
create index logins_by_end on logins (expires_at);
