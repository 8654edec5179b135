-- Counting received traces by time.

-- Traces that were received from `starts` to `first_day` and from `last_day` to `ends`: whole hours as they were counted, the
-- rest trace by trace. The six times are in order.
create or replace function received_around_days(
    workspaces uuid[], starts timestamptz, first_hour timestamptz, first_day timestamptz, last_day timestamptz,
    last_hour timestamptz, ends timestamptz
) returns table (
    received_at timestamptz, workspace_id uuid, project_id uuid, user_id uuid, api_key_id uuid, traces int
)
language sql stable
begin atomic
    select t.received_at, t.workspace_id, t.project_id, t.user_id, t.api_key_id, 1
    from traces t
    where t.workspace_id = any(workspaces) and t.received_at >= starts and t.received_at < first_hour
      and not t.is_imported
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
    where t.workspace_id = any(workspaces) and t.received_at >= last_hour and t.received_at < ends and not t.is_imported;
end;

-- The number of a time bucket; the bucket that begins at `origin` is 0.
create or replace function bucket_of(begin timestamptz, stride interval, origin timestamptz) returns int
language sql immutable
return (date_part('epoch', begin - origin) / date_part('epoch', stride))::int;
