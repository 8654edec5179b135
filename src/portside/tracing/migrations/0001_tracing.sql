-- A deleted project keeps its row, because bills go on naming it; its name is free for a new one.
create table projects (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    name text not null,
    created_at timestamptz not null default now(),
    deleted_at timestamptz
);

create unique index projects_by_name on projects (workspace_id, name) where deleted_at is null;

-- Clients choose run ids, so an id means something only within its workspace. A row may exist before its run was
-- posted: an early patch fills it, and a child that waits for its parent leaves an empty one; readers skip those
-- without a name. User data is kept as the JSON text that came: jsonb would refuse \u0000 and lone surrogates.
create table runs (
    workspace_id uuid not null,
    id uuid not null,
    trace_id uuid,
    parent_run_id uuid,
    dotted_order text,
    project_id uuid,
    reference_example_id uuid,
    name text,
    run_type text,
    start_time timestamptz,
    end_time timestamptz,
    status text not null generated always as (
        case when error is not null then 'error' when end_time is not null then 'success' else 'pending' end
    ) stored,
    tags text[],
    error text,
    inputs text,
    outputs text,
    extra text,
    events text,
    serialized text,
    patched int not null,
    patch_order double precision not null,
    is_awaited boolean not null,
    received_at timestamptz not null default now(),
    primary key (workspace_id, id)
);

create index runs_of_project on runs (workspace_id, project_id, start_time);
create index runs_without_place on runs (parent_run_id, workspace_id) where dotted_order is null;

-- What is billed: one row per trace, made at first receipt and never changed or removed.
create table traces (
    workspace_id uuid not null,
    trace_id uuid not null,
    project_id uuid not null,
    api_key_id uuid not null,
    user_id uuid,
    received_at timestamptz not null default now(),
    primary key (workspace_id, trace_id)
);

create index traces_by_receipt on traces (workspace_id, received_at) include (project_id, user_id, api_key_id);

create table feedback (
    workspace_id uuid not null,
    id uuid not null,
    run_id uuid,
    trace_id uuid,
    key text not null,
    body text not null,
    modified_at timestamptz not null,
    primary key (workspace_id, id)
);

create index feedback_of_run on feedback (workspace_id, run_id);

create table attachments (
    workspace_id uuid not null,
    run_id uuid not null,
    name text not null,
    content_type text not null,
    data bytea not null,
    primary key (workspace_id, run_id, name)
);

-- One field of a run when another delivery speaks of it: null never wins, else the weightier of the two does.
create function settle(kept anyelement, came anyelement, keeps boolean) returns anyelement
language sql immutable parallel safe
as $$ select case when keeps then coalesce(kept, came) else coalesce(came, kept) end $$;

-- A run's own part of its dotted order; a run that never said when it began is placed by its receipt.
create function own_order(start_time timestamptz, received_at timestamptz, id uuid) returns text
language sql stable
as $$ select to_char(coalesce(start_time, received_at) at time zone 'UTC', 'YYYYMMDD"T"HH24MISSUS"Z"') || id $$;
