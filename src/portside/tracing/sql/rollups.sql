-- name: try_lock
-- Held until the end of the transaction. A second process gets false and does nothing.
select pg_try_advisory_xact_lock(hashtext(:name))

-- name: committed_until
-- Rows carry the start time of their transaction, so everything before the oldest running transaction is complete. The
-- margin covers clocks that are set back, and transactions that this role may not see.
select least(now() - make_interval(secs => :settled_s::float8), min(xact_start))
from pg_stat_activity
where datname = current_database()

-- name: rollups_until
select until from daily_run_stats_progress

-- name: next_day_of_runs
-- The first day that has runs and no rollup yet.
select date_trunc('day', min(x.began), 'UTC')
from workspaces w
cross join lateral (
    select coalesce(r.start_time, r.received_at) as began
    from runs r
    where r.workspace_id = w.id
      and coalesce(r.start_time, r.received_at) >= coalesce((select until from daily_run_stats_progress), '-infinity')
    order by 1
    limit 1
) x

-- name: days_to_count
-- Marks of stale days that exist before the day is counted are removed.
with cleared as (
    delete from stale_days where day = :day::timestamptz
)
select id as project_id, :day::timestamptz as day from projects

-- name: take_stale_days
-- Takes the marks of counted days that have been quiet for a while. Days that keep changing wait longer.
with quiet as (
    select project_id, day from stale_days
    where day < (select until from daily_run_stats_progress)
    group by project_id, day
    having max(written_at) < now() - make_interval(secs => :quiet_s::float8)
        or min(written_at) < now() - 24 * make_interval(secs => :quiet_s::float8)
    limit :batch::int
),
cleared as (
    delete from stale_days t using quiet q where t.project_id = q.project_id and t.day = q.day
    returning t.project_id, t.day, t.has_deletion
),
finished as (
    update daily_usage d set is_final = true
    from (select distinct project_id, day from cleared where has_deletion) c
    where d.project_id = c.project_id and d.day = c.day and not d.is_final
)
select project_id, day from quiet

-- name: delete_rollups
delete from daily_run_stats d
using unnest(:project_ids::uuid[], :days::timestamptz[]) as t (project_id, day)
where d.project_id = t.project_id and d.day = t.day

-- name: insert_rollups
-- One day of a project at a time, so that sorts stay small.
insert into daily_run_stats
select t.project_id, t.day, c.*
from unnest(:project_ids::uuid[], :days::timestamptz[]) as t (project_id, day)
join projects w on w.id = t.project_id
cross join lateral (
    with measured as materialized (
        select * from run_measurements(w.workspace_id, array[t.project_id], t.day, t.day + interval '24 hours')
    ),
    spread as (
        select s.is_root, array_agg(s.bin) as bins, array_agg(s.n) as counts
        from (
            select m.is_root, u.bin, count(*) as n
            from measured m
            cross join lateral unnest(m.bins) as u (bin)
            group by 1, 2
        ) s
        group by 1
    ),
    summed as (
        select is_root, count(*) as runs, sum(failed) as failed, sum(streamed) as streamed, sum(timed) as timed,
               sum(seconds) as seconds, sum(prompt_tokens) as prompt_tokens, sum(completion_tokens) as completion_tokens,
               sum(total_tokens) as total_tokens, sum(prompt_cost) as prompt_cost, sum(completion_cost) as completion_cost,
               sum(total_cost) as total_cost, max(last_start) as last_start
        from measured
        group by 1
    )
    select s.*, p.bins, p.counts
    from summed s
    join spread p using (is_root)
) c

-- name: delete_daily_usage
-- Final rows stay: runs of their days have been deleted, so a new count would be too low.
delete from daily_usage d
using unnest(:project_ids::uuid[], :days::timestamptz[]) as t (project_id, day)
where d.project_id = t.project_id and d.day = t.day and not d.is_final

-- name: insert_daily_usage
-- Days whose runs have begun to be deleted are final: they keep the usage that was counted.
insert into daily_usage
select w.workspace_id, u.*
from unnest(:project_ids::uuid[], :days::timestamptz[]) as t (project_id, day)
join projects w on w.id = t.project_id
cross join lateral run_usage(w.workspace_id, array[t.project_id], t.day, t.day + interval '24 hours') u
where not exists (select from daily_usage d where d.project_id = t.project_id and d.day = t.day and d.is_final)

-- name: set_rollups_until
insert into daily_run_stats_progress (until) values (:day::timestamptz + interval '24 hours')
on conflict (is_only) do update set until = excluded.until

-- name: projects_of_workspace
-- Includes deleted projects: runs may have arrived for them since.
select id from projects where workspace_id = :workspace_id and (:ids::uuid[] is null or id = any(:ids::uuid[]))

-- name: count_rollup_runs
-- Of few runs the percentiles are computed exactly, from each run.
select coalesce(sum(runs), 0)::bigint from daily_run_stats
where project_id = any(:projects::uuid[]) and day >= :first_day::timestamptz and day < :last_day::timestamptz
  and (:is_root::boolean is null or is_root = :is_root::boolean)

-- name: read_rollups
-- The statistics of `run_stats` from the rollups of whole days, and run by run for the rest and for stale days. Percentiles
-- are returned as bins; a single run counts 1 in its bin.
with stale as materialized (
    select distinct project_id, day from stale_days
    where project_id = any(:projects::uuid[]) and day >= :first_day::timestamptz and day < :last_day::timestamptz
),
parts as materialized (
    select d.project_id, d.day as began, d.is_root, d.runs, d.failed, d.streamed, d.timed, d.seconds, d.prompt_tokens,
           d.completion_tokens, d.total_tokens, d.prompt_cost, d.completion_cost, d.total_cost, d.last_start, d.bins,
           d.counts
    from daily_run_stats d
    where d.project_id = any(:projects::uuid[]) and d.day >= :first_day::timestamptz and d.day < :last_day::timestamptz
      and not exists (select from stale t where t.project_id = d.project_id and t.day = d.day)
    union all
    -- One call for all periods, because the function is slow to plan.
    select m.*
    from (
        select :projects::uuid[] as projects, :start::timestamptz as since, :first_day::timestamptz as before
        union all
        select :projects::uuid[], :last_day::timestamptz, coalesce(:before::timestamptz, 'infinity')
        union all
        select array[t.project_id], t.day, t.day + interval '24 hours' from stale t
    ) s
    cross join lateral run_measurements(:workspace_id, s.projects, s.since, s.before) m
),
chosen as (
    select p.*, date_bin(:stride::interval, p.began, :origin::timestamptz) as bucket,
           case when :by_project::boolean then p.project_id::text else '' end as group_name
    from parts p
    where :is_root::boolean is null or p.is_root = :is_root::boolean
),
summed as (
    select bucket, group_name, sum(runs)::bigint as run_count, sum(seconds) / nullif(sum(timed), 0)::float8 as latency_avg,
           least(sum(prompt_tokens), 9e18)::bigint as prompt_tokens,
           least(sum(completion_tokens), 9e18)::bigint as completion_tokens,
           least(sum(total_tokens), 9e18)::bigint as total_tokens,
           sum(prompt_cost)::text as prompt_cost, sum(completion_cost)::text as completion_cost,
           sum(total_cost)::text as total_cost, (sum(failed) / sum(runs))::float8 as error_rate,
           (sum(streamed) / sum(runs))::float8 as streaming_rate, max(last_start) as last_run_start_time
    from chosen
    group by 1, 2
),
spread as (
    select s.bucket, s.group_name, array_agg(s.bin order by s.bin) as bins,
           array_agg(s.n order by s.bin) as counts
    from (
        select c.bucket, c.group_name, u.bin, sum(coalesce(u.n, 1))::bigint as n
        from chosen c
        cross join lateral unnest(c.bins, c.counts) as u (bin, n)
        group by 1, 2, 3
    ) s
    group by 1, 2
)
select s.*, p.bins, p.counts
from summed s
join spread p on p.group_name = s.group_name and p.bucket is not distinct from s.bucket
order by s.run_count desc, s.group_name
limit :limit::int
