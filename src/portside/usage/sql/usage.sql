-- name: usage_by_workspace
-- All four queries count first and look names up afterwards: the count is index-only scans, of what was counted and of
-- traces_by_receipt for the hours that the range cuts, and buckets times dimensions are few. Buckets have a fixed width from
-- `origin`; only those with traces appear.
with counted as (
    select date_bin(:stride::interval, received_at, :origin::timestamptz) as time_bucket, workspace_id,
           sum(traces)::bigint as traces
    from received(
        :workspace_ids::uuid[], :start_time::timestamptz, :first_hour::timestamptz, :first_day::timestamptz,
        :last_day::timestamptz, :last_hour::timestamptz, :end_time::timestamptz
    )
    group by 1, 2
)
select c.time_bucket, c.workspace_id, w.display_name as workspace_name, c.traces
from counted c
left join workspaces w on w.id = c.workspace_id
order by c.time_bucket, c.traces desc, c.workspace_id

-- name: usage_by_project
-- Deleted projects keep their names for this.
with counted as (
    select date_bin(:stride::interval, received_at, :origin::timestamptz) as time_bucket, project_id,
           sum(traces)::bigint as traces
    from received(
        :workspace_ids::uuid[], :start_time::timestamptz, :first_hour::timestamptz, :first_day::timestamptz,
        :last_day::timestamptz, :last_hour::timestamptz, :end_time::timestamptz
    )
    group by 1, 2
)
select c.time_bucket, c.project_id, p.name as project_name, c.traces
from counted c
left join projects p on p.id = c.project_id
order by c.time_bucket, c.traces desc, c.project_id

-- name: usage_by_user
-- Traces of service keys have no user; they are one row with nulls.
with counted as (
    select date_bin(:stride::interval, received_at, :origin::timestamptz) as time_bucket, user_id, sum(traces)::bigint as traces
    from received(
        :workspace_ids::uuid[], :start_time::timestamptz, :first_hour::timestamptz, :first_day::timestamptz,
        :last_day::timestamptz, :last_hour::timestamptz, :end_time::timestamptz
    )
    group by 1, 2
)
select c.time_bucket, c.user_id, u.email as user_email, c.traces
from counted c
left join users u on u.id = c.user_id
order by c.time_bucket, c.traces desc, c.user_id

-- name: usage_by_api_key
-- The short key is all that the contract shows of a key, so keys that share one share a row.
with counted as (
    select date_bin(:stride::interval, received_at, :origin::timestamptz) as time_bucket, api_key_id,
           sum(traces)::bigint as traces
    from received(
        :workspace_ids::uuid[], :start_time::timestamptz, :first_hour::timestamptz, :first_day::timestamptz,
        :last_day::timestamptz, :last_hour::timestamptz, :end_time::timestamptz
    )
    group by 1, 2
)
select c.time_bucket, k.short_key as api_key_short_key, sum(c.traces)::bigint as traces
from counted c
left join api_keys k on k.id = c.api_key_id
group by c.time_bucket, k.short_key
order by c.time_bucket, traces desc, k.short_key

-- name: next_hour
-- The first hour that is not counted yet, which at first is the midnight before the first trace; none before that.
select coalesce(
    (select until from counted_hours), (select date_trunc('day', min(received_at), 'UTC') from traces)
)

-- name: count_hours
insert into trace_hours (workspace_id, hour, project_id, user_id, api_key_id, traces)
select workspace_id, date_trunc('hour', received_at, 'UTC') as hour, project_id, user_id, api_key_id, count(*)
from traces
where workspace_id = any(array(select id from workspaces))
    and received_at >= :since::timestamptz and received_at < :until::timestamptz
group by 1, 2, 3, 4, 5
order by 1, 2

-- name: close_hours
insert into counted_hours (until) values (:until::timestamptz)
on conflict (is_the_only) do update set until = excluded.until

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
insert into trace_days (workspace_id, day, project_id, user_id, api_key_id, traces)
select workspace_id, :day::timestamptz, project_id, user_id, api_key_id, sum(traces)
from trace_hours
where workspace_id = any(array(select id from workspaces))
    and hour >= :day::timestamptz and hour < :day::timestamptz + interval '24 hours'
group by workspace_id, project_id, user_id, api_key_id

-- name: close_day
insert into counted_days (until) values (:day::timestamptz + interval '24 hours')
on conflict (is_the_only) do update set until = excluded.until

-- name: counted_until
select (select until from counted_hours) as hours, (select until from counted_days) as days

-- name: longlived_by_workspace
-- By the moment at which traces became long-lived, which for most is that of their receipt.
select workspace_id, count(*) as traces
from traces
where workspace_id = any(:workspace_ids::uuid[]) and tier = 'longlived'
  and coalesce(extended_at, received_at) >= :start_time and coalesce(extended_at, received_at) < :end_time
group by workspace_id
