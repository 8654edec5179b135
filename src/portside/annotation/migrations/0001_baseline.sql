-- Clients choose the ids of queues, so an id is unique only within its workspace.
create table annotation_queues (
    workspace_id uuid not null references workspaces (id),
    id uuid not null,
    name text not null,
    description text,
    rubric_instructions text,
    rubric_items jsonb not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (workspace_id, id)
);

create index annotation_queues_newest on annotation_queues (workspace_id, created_at desc, id);

-- Positions may have gaps: the run of a row that was deleted leaves one.
create table queued_runs (
    workspace_id uuid not null,
    queue_id uuid not null,
    run_id uuid not null,
    position bigint generated always as identity,
    added_at timestamptz not null default now(),
    last_reviewed_time timestamptz,
    primary key (workspace_id, queue_id, run_id),
    foreign key (workspace_id, queue_id) references annotation_queues (workspace_id, id) on delete cascade
);

create index queued_runs_in_order on queued_runs (workspace_id, queue_id, position);

-- How to interpret the feedback of a key.
create table feedback_configs (
    workspace_id uuid not null references workspaces (id),
    feedback_key text not null,
    feedback_config jsonb not null,
    is_lower_score_better boolean not null,
    modified_at timestamptz not null default now(),
    primary key (workspace_id, feedback_key)
);
