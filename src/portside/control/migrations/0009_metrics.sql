-- What a listener found a deployment to use when it last looked.
create table deployment_metrics (
    deployment_id uuid primary key references deployments (id) on delete cascade,
    measured_at timestamptz not null,
    measures jsonb not null
);
