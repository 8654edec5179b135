-- What a workspace lets itself receive in a calendar month of UTC.
create table usage_limits (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    limit_type text not null,
    limit_value bigint not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (workspace_id, limit_type)
);

create index traces_by_extension on traces (workspace_id, extended_at) where extended_at is not null;
