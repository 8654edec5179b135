-- A deleted project keeps its row, because bills name it; its name is free for a new project.
create table projects (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    name text not null,
    description text,
    extra jsonb,
    start_time timestamptz,
    end_time timestamptz,
    reference_dataset_id uuid,
    default_dataset_id uuid,
    trace_tier text,
    created_at timestamptz not null default now(),
    deleted_at timestamptz
);

create unique index projects_by_name on projects (workspace_id, name) where deleted_at is null;

-- Clients choose run ids, so an id is unique only within its workspace. A row may exist before its run was posted: an early
-- patch fills it, and a child that waits for its parent inserts an empty one. Readers skip rows without a name.
-- User data is stored as the JSON text that the client sent: jsonb would refuse \u0000 and lone surrogates.
-- `usage` and `first_token_time` are extracted when a run is written, so that statistics over many runs do not parse user
-- data.
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
    usage jsonb generated always as (usage_of(extra, outputs)) stored,
    first_token_time timestamptz generated always as (first_token_of(events)) stored,
    patched int not null,
    patch_order double precision not null,
    is_awaited boolean not null,
    received_at timestamptz not null default now(),
    primary key (workspace_id, id)
);

-- Most runs are posted when they begin and patched when they end: where the page has free space, a patch updates no index.
alter table runs set (fillfactor = 60);

-- Pages of one project, and of several or all projects, are ordered by time. A run without a start time is ordered by its
-- receipt.
create index runs_by_time on runs (workspace_id, project_id, (coalesce(start_time, received_at)), id);
create index runs_of_workspace on runs (workspace_id, (coalesce(start_time, received_at)), id);
-- A run without a trace is one of its own.
create index runs_of_trace on runs (workspace_id, (coalesce(trace_id, id)));
create index runs_of_parent on runs (workspace_id, parent_run_id) where parent_run_id is not null;
create index runs_without_dotted_order on runs (parent_run_id, workspace_id) where dotted_order is null;

-- A project belongs to one workspace. Without this, the planner estimates a fraction of the runs that a project has, and
-- reads all of them where it could begin with the little feedback that they have.
create statistics runs_of_projects (dependencies) on workspace_id, project_id from runs;

-- The triggers mark the day of a late run as stale. No day is counted until an hour after its end, when all transactions
-- that may write to it without the trigger are over.
create trigger mark_day_of_new_run after insert on runs for each row
when (coalesce(new.start_time, new.received_at) < now() - interval '1 hour')
execute function mark_day_stale();

create trigger mark_day_of_changed_run after update on runs for each row
when (least(coalesce(old.start_time, old.received_at), coalesce(new.start_time, new.received_at))
    < now() - interval '1 hour')
execute function mark_day_stale();

create trigger mark_day_of_deleted_run after delete on runs for each row
when (coalesce(old.start_time, old.received_at) < now() - interval '1 hour')
execute function mark_day_stale();

-- The statistics of a project's runs of one day, counted once when the day is over. Days are in UTC. `bins` and `counts`
-- are histograms of the values that percentiles are computed from: values of one bin differ by 5 % at most.
create table daily_run_stats (
    project_id uuid not null,
    day timestamptz not null,
    is_root boolean not null,
    runs bigint not null,
    failed bigint not null,
    streamed bigint not null,
    timed bigint not null,
    seconds float8,
    prompt_tokens numeric not null,
    completion_tokens numeric not null,
    total_tokens numeric not null,
    prompt_cost numeric,
    completion_cost numeric,
    total_cost numeric,
    last_start timestamptz not null,
    bins smallint[] not null,
    counts bigint[] not null,
    primary key (project_id, day, is_root)
);

-- Days of a project in which a run was written or deleted long after it began: their statistics are not used until they are
-- counted again. Every transaction inserts rows of its own, so that none waits for another, and a row that is inserted
-- while its day is counted remains for the next time.
create table stale_days (
    project_id uuid not null,
    day timestamptz not null,
    written_by xid8 not null default pg_current_xact_id(),
    written_at timestamptz not null default now(),
    primary key (project_id, day, written_by)
);

-- Each day before `until` that has runs is counted or stale. There is one row, or none before the first day.
create table daily_run_stats_progress (
    is_only boolean primary key default true check (is_only),
    until timestamptz not null
);

-- What is billed: one row for each trace, made at its first receipt and never removed. The row remains when the trace
-- expires. A trace is kept for as long as its tier says; `extended_at` is when it became long-lived, null for one that was
-- long-lived from the beginning.
create table traces (
    workspace_id uuid not null,
    trace_id uuid not null,
    project_id uuid not null,
    api_key_id uuid not null,
    user_id uuid,
    tier text not null default 'longlived',
    received_at timestamptz not null default now(),
    extended_at timestamptz,
    expired_at timestamptz,
    primary key (workspace_id, trace_id)
);

create index traces_by_receipt on traces (workspace_id, received_at) include (project_id, user_id, api_key_id);
create index traces_by_extension on traces (workspace_id, extended_at) where extended_at is not null;
create index traces_to_expire on traces (tier, received_at) where expired_at is null;

-- The limits that a workspace sets itself for a calendar month in UTC.
create table usage_limits (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    limit_type text not null,
    limit_value bigint not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (workspace_id, limit_type)
);

create table attachments (
    workspace_id uuid not null,
    run_id uuid not null,
    name text not null,
    content_type text not null,
    data bytea not null,
    primary key (workspace_id, run_id, name)
);

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
create index feedback_by_time on feedback (workspace_id, modified_at);

-- The id of a token permits one piece of feedback until the token expires.
create table feedback_tokens (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    run_id uuid not null,
    key text not null,
    config jsonb,
    feedback_id uuid not null,
    expires_at timestamptz not null,
    created_at timestamptz not null default now()
);

create index feedback_tokens_of_run on feedback_tokens (workspace_id, run_id, created_at);

-- A token gives read access to the run and its descendants. A run that is shared again keeps its token.
create table shared_runs (
    share_token uuid primary key,
    workspace_id uuid not null references workspaces (id),
    run_id uuid not null,
    created_at timestamptz not null default now(),
    unique (workspace_id, run_id)
);

-- Charts are stored queries over runs; their data is computed when somebody views them.
create table chart_sections (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    title text not null,
    description text,
    index int not null,
    created_at timestamptz not null default now()
);

create index chart_sections_in_order on chart_sections (workspace_id, index, id);

create table charts (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    section_id uuid not null references chart_sections (id) on delete cascade,
    title text not null,
    description text,
    index int not null,
    chart_type text not null,
    series jsonb not null,
    common_filters jsonb,
    metadata jsonb,
    created_at timestamptz not null default now()
);

create index charts_of_section on charts (section_id, index, id);
