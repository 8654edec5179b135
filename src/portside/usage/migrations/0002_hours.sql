-- Of a range that begins and ends in the middle of a day, two days were added up trace by trace. Hours are counted beside
-- days, so only those are that the range cuts. Days that were counted before there were hours stay; hours begin with the
-- first trace again, and are added up as far as they have come.
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
    is_the_only boolean primary key default true check (is_the_only),
    until timestamptz not null
);

drop function received(uuid[], timestamptz, timestamptz, timestamptz, timestamptz);

-- What was received from `starts` to `ends`: whole days as they were counted, before and after them whole hours, and the
-- rest trace by trace. The six moments are in order.
create function received(
    workspaces uuid[], starts timestamptz, first_hour timestamptz, first_day timestamptz,
    last_day timestamptz, last_hour timestamptz, ends timestamptz
)
returns table (
    received_at timestamptz, workspace_id uuid, project_id uuid, user_id uuid, api_key_id uuid, traces bigint
)
language sql stable
as $$
    select t.received_at, t.workspace_id, t.project_id, t.user_id, t.api_key_id, 1::bigint
    from traces t
    where t.workspace_id = any(workspaces) and t.received_at >= starts and t.received_at < first_hour
    union all
    select h.hour, h.workspace_id, h.project_id, h.user_id, h.api_key_id, h.traces
    from trace_hours h
    where h.workspace_id = any(workspaces) and h.hour >= first_hour and h.hour < first_day
    union all
    select d.day, d.workspace_id, d.project_id, d.user_id, d.api_key_id, d.traces
    from trace_days d
    where d.workspace_id = any(workspaces) and d.day >= first_day and d.day < last_day
    union all
    select h.hour, h.workspace_id, h.project_id, h.user_id, h.api_key_id, h.traces
    from trace_hours h
    where h.workspace_id = any(workspaces) and h.hour >= last_day and h.hour < last_hour
    union all
    select t.received_at, t.workspace_id, t.project_id, t.user_id, t.api_key_id, 1::bigint
    from traces t
    where t.workspace_id = any(workspaces) and t.received_at >= last_hour and t.received_at < ends
$$;
