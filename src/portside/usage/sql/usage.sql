-- name: usage_by_workspace
-- All four queries return series: counts by bucket number, counted from :origin. They count first and join the names
-- afterwards, because there are few series: the counts are index-only scans of the totals, and of traces_by_receipt for
-- the partial hours of the range. A bucket may occur more than once in a series.
with counted as (
    select workspace_id, date_bin(:stride::interval, received_at, :origin::timestamptz) as begin, sum(traces) as traces
    from received_around_days(
        :workspace_ids::uuid[], :start_time::timestamptz, :first_hour::timestamptz, :first_day::timestamptz,
        :last_day::timestamptz, :last_hour::timestamptz, :end_time::timestamptz
    )
    group by 1, 2
    union all
    select workspace_id, date_bin(:stride::interval, day, :origin::timestamptz), sum(traces)
    from project_days
    where workspace_id = any(:workspace_ids::uuid[]) and day >= :first_day and day < :last_day
    group by 1, 2
)
select c.workspace_id, w.display_name as workspace_name,
       array_agg(bucket_of(c.begin, :stride::interval, :origin::timestamptz)) as buckets, array_agg(c.traces) as traces
from counted c
left join workspaces w on w.id = c.workspace_id
group by c.workspace_id, w.display_name
order by w.display_name, c.workspace_id

-- name: usage_by_project
-- Deleted projects keep their names for this. project_days has one row per project and day, so they are not summed.
with counted as (
    select project_id, date_bin(:stride::interval, received_at, :origin::timestamptz) as begin, sum(traces) as traces
    from received_around_days(
        :workspace_ids::uuid[], :start_time::timestamptz, :first_hour::timestamptz, :first_day::timestamptz,
        :last_day::timestamptz, :last_hour::timestamptz, :end_time::timestamptz
    )
    group by 1, 2
    union all
    select project_id, date_bin(:stride::interval, day, :origin::timestamptz), traces
    from project_days
    where workspace_id = any(:workspace_ids::uuid[]) and day >= :first_day and day < :last_day
),
series as (
    select project_id, array_agg(bucket_of(begin, :stride::interval, :origin::timestamptz)) as buckets,
           array_agg(traces) as traces
    from counted
    group by project_id
)
select s.project_id, p.name as project_name, s.buckets, s.traces
from series s
left join projects p on p.id = s.project_id
order by p.name, s.project_id

-- name: usage_by_user
-- Traces of service keys have no user; they are one series with null.
with counted as (
    select user_id, date_bin(:stride::interval, received_at, :origin::timestamptz) as begin, sum(traces) as traces
    from received_around_days(
        :workspace_ids::uuid[], :start_time::timestamptz, :first_hour::timestamptz, :first_day::timestamptz,
        :last_day::timestamptz, :last_hour::timestamptz, :end_time::timestamptz
    )
    group by 1, 2
    union all
    select user_id, date_bin(:stride::interval, day, :origin::timestamptz), sum(traces)
    from trace_days
    where workspace_id = any(:workspace_ids::uuid[]) and day >= :first_day and day < :last_day
    group by 1, 2
)
select c.user_id, u.email as user_email,
       array_agg(bucket_of(c.begin, :stride::interval, :origin::timestamptz)) as buckets, array_agg(c.traces) as traces
from counted c
left join users u on u.id = c.user_id
group by c.user_id, u.email
order by u.email, c.user_id

-- name: usage_by_api_key
-- LangSmith's API shows only the short key, so keys with the same short key share a series.
with counted as (
    select api_key_id, date_bin(:stride::interval, received_at, :origin::timestamptz) as begin, sum(traces) as traces
    from received_around_days(
        :workspace_ids::uuid[], :start_time::timestamptz, :first_hour::timestamptz, :first_day::timestamptz,
        :last_day::timestamptz, :last_hour::timestamptz, :end_time::timestamptz
    )
    group by 1, 2
    union all
    select api_key_id, date_bin(:stride::interval, day, :origin::timestamptz), sum(traces)
    from trace_days
    where workspace_id = any(:workspace_ids::uuid[]) and day >= :first_day and day < :last_day
    group by 1, 2
)
select k.short_key as api_key_short_key,
       array_agg(bucket_of(c.begin, :stride::interval, :origin::timestamptz)) as buckets, array_agg(c.traces) as traces
from counted c
left join api_keys k on k.id = c.api_key_id
group by k.short_key
order by k.short_key

-- name: counted_until
-- One row always, with null as long as nothing is counted: ranges are split at these times.
select (select until from counted_hours) as hours, (select until from counted_days) as days

-- name: longlived_by_workspace
-- By the time at which traces became long-lived, which for most is the time of receipt.
select workspace_id, count(*) as traces
from traces
where workspace_id = any(:workspace_ids::uuid[]) and tier = 'longlived' and not is_imported
  and coalesce(extended_at, received_at) >= :start_time and coalesce(extended_at, received_at) < :end_time
group by workspace_id
