-- Older versions run: they know neither the table nor the column, which has a default.
-- After an upgrade of the platform the servers of deployments are replaced one deployment after the other. A rollout halts
-- at the first that fails. `version` is the platform's.
create table server_rollouts (
    id bigint generated always as identity primary key,
    version text not null,
    status text not null default 'running' check (status in ('running', 'halted', 'done')),
    deployment_id uuid references deployments (id) on delete set null,
    reason text,
    skipped uuid[] not null default '{}',
    started_at timestamptz not null default now(),
    changed_at timestamptz not null default now()
);

-- The number of the request to replace a deployment's servers; 0 while there is none. Each request has another number.
alter table deployments add column roll_forward bigint not null default 0;
create sequence roll_forward_requests;
