-- Counts of received traces. Traces are never changed or removed, so a day that is over is counted once. Days are in UTC.
create table trace_days (
    workspace_id uuid not null,
    day timestamptz not null,
    project_id uuid not null,
    user_id uuid,
    api_key_id uuid not null,
    traces bigint not null
);

create index trace_days_by_day on trace_days (workspace_id, day) include (project_id, user_id, api_key_id, traces);

-- The end of the last day that was counted: one row, or none before the first.
create table counted_days (
    is_only boolean primary key default true check (is_only),
    until timestamptz not null
);

-- Hours are counted beside days: a range that begins and ends in the middle of a day would otherwise add up two days
-- trace by trace. Hours are used as far as they have been counted.
create table trace_hours (
    workspace_id uuid not null,
    hour timestamptz not null,
    project_id uuid not null,
    user_id uuid,
    api_key_id uuid not null,
    traces bigint not null
);

create index trace_hours_by_hour on trace_hours (workspace_id, hour) include (project_id, user_id, api_key_id, traces);

create table counted_hours (
    is_only boolean primary key default true check (is_only),
    until timestamptz not null
);

-- Most queries group by project or workspace. The sums of `trace_days` over users and keys are stored here, so that an
-- answer by day reads one row for each project and day and adds nothing up.
create table project_days (
    workspace_id uuid not null,
    day timestamptz not null,
    project_id uuid not null,
    traces int not null
);

create index project_days_by_day on project_days (workspace_id, day) include (project_id, traces);
