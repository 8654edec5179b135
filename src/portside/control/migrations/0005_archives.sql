-- Source archives: where one may be put, for which deployment, and whether a revision is made of it. The bytes are in
-- the archive store. An address is opened by a random token, so a plain SHA-256 of it is enough to store.
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
