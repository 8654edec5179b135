-- Accounts at git hosts. Token and webhook secret are sealed for the integration's id, and never shown again.
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

create index deployments_of_integration on deployments (integration_id) where integration_id is not null;

-- Deliveries of push hooks that were acted on, so that a repeated one is not.
create table push_deliveries (
    integration_id uuid not null references integrations (id) on delete cascade,
    delivery_id text not null,
    received_at timestamptz not null default now(),
    primary key (integration_id, delivery_id)
);

create index push_deliveries_oldest on push_deliveries (received_at);
