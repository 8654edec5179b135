create table prompt_repos (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    handle text not null,
    description text not null,
    readme text not null,
    tags text[] not null,
    is_public boolean not null,
    is_archived boolean not null default false,
    num_downloads bigint not null default 0,
    num_views bigint not null default 0,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (workspace_id, handle)
);

-- The commits of a repository are a chain: a commit's hash is computed from its parent's hash and its manifest, which is
-- stored as the JSON text that the client sent.
create table prompt_commits (
    id uuid primary key,
    repo_id uuid not null references prompt_repos (id) on delete cascade,
    number int not null,
    parent_id uuid references prompt_commits (id),
    commit_hash text not null,
    manifest_hash text not null,
    manifest json not null,
    description text,
    num_downloads bigint not null default 0,
    created_at timestamptz not null default now(),
    unique (repo_id, number),
    unique (repo_id, commit_hash)
);

create index prompt_commits_of_parent on prompt_commits (parent_id);

create table prompt_tags (
    id uuid primary key,
    repo_id uuid not null references prompt_repos (id) on delete cascade,
    name text not null,
    commit_id uuid not null references prompt_commits (id) on delete cascade,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (repo_id, name)
);

create index prompt_tags_of_commit on prompt_tags (commit_id);

-- `liked_by` is a user or a service key.
create table prompt_likes (
    repo_id uuid not null references prompt_repos (id) on delete cascade,
    liked_by uuid not null,
    primary key (repo_id, liked_by)
);
