-- name: next_hour
-- The first hour that is not counted yet. Initially the midnight before the first trace; null without any trace.
select coalesce(
    (select until from counted_hours), (select date_trunc('day', min(received_at), 'UTC') from traces)
)

-- name: count_hours
-- All workspaces are listed because the index of traces begins with them; deleted ones stay, for what was received is billed.
insert into trace_hours (workspace_id, hour, project_id, user_id, api_key_id, traces)
select workspace_id, date_trunc('hour', received_at, 'UTC') as hour, project_id, user_id, api_key_id, count(*)
from traces
where workspace_id = any(array(select id from workspaces))
    and received_at >= :since::timestamptz and received_at < :until::timestamptz and not is_imported
group by 1, 2, 3, 4, 5
order by 1, 2

-- name: close_hours
-- Stored apart from the hours, because hours without traces have no rows.
insert into counted_hours (until) values (:until::timestamptz)
on conflict (is_only) do update set until = excluded.until

-- name: next_day
-- The first day that is not counted yet, if all of its hours are.
select day
from (
    select coalesce(
        (select until from counted_days), (select date_trunc('day', min(hour), 'UTC') from trace_hours)
    ) as day
) d
where day + interval '24 hours' <= (select until from counted_hours)

-- name: count_day
-- From the hours, so that no trace is read a second time.
insert into trace_days (workspace_id, day, project_id, user_id, api_key_id, traces)
select workspace_id, :day::timestamptz, project_id, user_id, api_key_id, sum(traces)
from trace_hours
where workspace_id = any(array(select id from workspaces))
    and hour >= :day::timestamptz and hour < :day::timestamptz + interval '24 hours'
group by workspace_id, project_id, user_id, api_key_id

-- name: count_day_of_projects
-- What most queries group by, so that they add nothing up: one row for each project and day.
insert into project_days (workspace_id, day, project_id, traces)
select workspace_id, day, project_id, sum(traces)
from trace_days
where workspace_id = any(array(select id from workspaces)) and day = :day::timestamptz
group by workspace_id, day, project_id

-- name: close_day
-- Stored apart from the days, because days without traces have no rows.
insert into counted_days (until) values (:day::timestamptz + interval '24 hours')
on conflict (is_only) do update set until = excluded.until
