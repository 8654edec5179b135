-- name: usage_by_workspace
-- All four queries count first and look names up afterwards: the count is an index-only scan of traces_by_receipt, and
-- buckets times dimensions are few. Buckets have a fixed width from `origin`; only those with traces appear.
with counted as (
    select date_bin(:stride::interval, received_at, :origin::timestamptz) as time_bucket, workspace_id,
           count(*) as traces
    from traces
    where workspace_id = any(:workspace_ids::uuid[]) and received_at >= :start_time and received_at < :end_time
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
           count(*) as traces
    from traces
    where workspace_id = any(:workspace_ids::uuid[]) and received_at >= :start_time and received_at < :end_time
    group by 1, 2
)
select c.time_bucket, c.project_id, p.name as project_name, c.traces
from counted c
left join projects p on p.id = c.project_id
order by c.time_bucket, c.traces desc, c.project_id

-- name: usage_by_user
-- Traces of service keys have no user; they are one row with nulls.
with counted as (
    select date_bin(:stride::interval, received_at, :origin::timestamptz) as time_bucket, user_id, count(*) as traces
    from traces
    where workspace_id = any(:workspace_ids::uuid[]) and received_at >= :start_time and received_at < :end_time
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
           count(*) as traces
    from traces
    where workspace_id = any(:workspace_ids::uuid[]) and received_at >= :start_time and received_at < :end_time
    group by 1, 2
)
select c.time_bucket, k.short_key as api_key_short_key, sum(c.traces)::bigint as traces
from counted c
left join api_keys k on k.id = c.api_key_id
group by c.time_bucket, k.short_key
order by c.time_bucket, traces desc, k.short_key
