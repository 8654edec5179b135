-- Most ask by project or workspace. What days hold by user and key as well is added up once, so that an answer by day has
-- one row of each project and day to read and nothing to add up.
create table project_days (
    workspace_id uuid not null,
    day timestamptz not null,
    project_id uuid not null,
    traces int not null
);

insert into project_days
select workspace_id, day, project_id, sum(traces) from trace_days group by workspace_id, day, project_id order by 1, 2;

create index project_days_by_day on project_days (workspace_id, day) include (project_id, traces);

drop function received(uuid[], timestamptz, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz);

-- What was received from `starts` to `first_day` and from `last_day` to `ends`: whole hours as they were counted, the rest
-- trace by trace. The six moments are in order.
create function received_around_days(
    workspaces uuid[], starts timestamptz, first_hour timestamptz, first_day timestamptz,
    last_day timestamptz, last_hour timestamptz, ends timestamptz
)
returns table (
    received_at timestamptz, workspace_id uuid, project_id uuid, user_id uuid, api_key_id uuid, traces int
)
language sql stable
as $$
    select t.received_at, t.workspace_id, t.project_id, t.user_id, t.api_key_id, 1
    from traces t
    where t.workspace_id = any(workspaces) and t.received_at >= starts and t.received_at < first_hour
    union all
    select h.hour, h.workspace_id, h.project_id, h.user_id, h.api_key_id, h.traces::int
    from trace_hours h
    where h.workspace_id = any(workspaces) and h.hour >= first_hour and h.hour < first_day
    union all
    select h.hour, h.workspace_id, h.project_id, h.user_id, h.api_key_id, h.traces::int
    from trace_hours h
    where h.workspace_id = any(workspaces) and h.hour >= last_day and h.hour < last_hour
    union all
    select t.received_at, t.workspace_id, t.project_id, t.user_id, t.api_key_id, 1
    from traces t
    where t.workspace_id = any(workspaces) and t.received_at >= last_hour and t.received_at < ends
$$;

-- The number of a bucket, the one that begins at `origin` being 0.
create function bucket_of(begin timestamptz, stride interval, origin timestamptz) returns int
language sql immutable
as $$
    select (date_part('epoch', begin - origin) / date_part('epoch', stride))::int
$$;
