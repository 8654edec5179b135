-- Traces are never changed or removed, so a day that is over is counted once and for all. Days are UTC's; `until` is the
-- end of the last one that was counted, and there is one row of it or none.
create table trace_days (
    workspace_id uuid not null,
    day timestamptz not null,
    project_id uuid not null,
    user_id uuid,
    api_key_id uuid not null,
    traces bigint not null
);

create index trace_days_by_day on trace_days (workspace_id, day) include (project_id, user_id, api_key_id, traces);

create table counted_days (
    is_the_only boolean primary key default true check (is_the_only),
    until timestamptz not null
);

-- What was received from `starts` to `ends`: whole days as they were counted, the rest trace by trace.
create function received(
    workspaces uuid[], starts timestamptz, ends timestamptz, first_day timestamptz, last_day timestamptz
)
returns table (
    received_at timestamptz, workspace_id uuid, project_id uuid, user_id uuid, api_key_id uuid, traces bigint
)
language sql stable
as $$
    select d.day, d.workspace_id, d.project_id, d.user_id, d.api_key_id, d.traces
    from trace_days d
    where d.workspace_id = any(workspaces) and d.day >= first_day and d.day < last_day
    union all
    select t.received_at, t.workspace_id, t.project_id, t.user_id, t.api_key_id, 1::bigint
    from traces t
    where t.workspace_id = any(workspaces) and t.received_at >= starts and t.received_at < first_day
    union all
    select t.received_at, t.workspace_id, t.project_id, t.user_id, t.api_key_id, 1::bigint
    from traces t
    where t.workspace_id = any(workspaces) and t.received_at >= last_day and t.received_at < ends
$$;
