-- name: begin_alone
-- Until the end of the transaction; who comes second does without.
select pg_try_advisory_xact_lock(hashtext(:name))

-- name: over_until
-- What a transaction writes bears the moment at which it began, so what is before the oldest of those under way is
-- complete. Some time is left for clocks that are set back, and for transactions of which other roles are not told.
select least(now() - make_interval(secs => :settled_s::float8), min(xact_start))
from pg_stat_activity
where datname = current_database()

-- name: figured_until
select until from figured_days

-- name: next_day_of_runs
-- The first day that has runs and is not counted yet.
select date_trunc('day', min(x.began), 'UTC')
from workspaces w
cross join lateral (
    select coalesce(r.start_time, r.received_at) as began
    from runs r
    where r.workspace_id = w.id
      and coalesce(r.start_time, r.received_at) >= coalesce((select until from figured_days), '-infinity')
    order by 1
    limit 1
) x

-- name: days_of_projects
-- The touches that are there before the day is counted are taken away.
with untouched as (
    delete from touched_days where day = :day::timestamptz
)
select id as project_id, :day::timestamptz as day from projects

-- name: untouch_days
-- Of days that were counted and have not been touched for some time. Those that are touched again and again wait longer.
with quiet as (
    select project_id, day from touched_days
    where day < (select until from figured_days)
    group by project_id, day
    having max(written_at) < now() - make_interval(secs => :quiet_s::float8)
        or min(written_at) < now() - 24 * make_interval(secs => :quiet_s::float8)
    limit :batch::int
),
untouched as (
    delete from touched_days t using quiet q where t.project_id = q.project_id and t.day = q.day
)
select project_id, day from quiet

-- name: forget_days
delete from figure_days d
using unnest(:project_ids::uuid[], :days::timestamptz[]) as t (project_id, day)
where d.project_id = t.project_id and d.day = t.day

-- name: count_days
-- Each day of a project by itself, so that what is sorted stays small.
insert into figure_days
select t.project_id, t.day, c.*
from unnest(:project_ids::uuid[], :days::timestamptz[]) as t (project_id, day)
join projects w on w.id = t.project_id
cross join lateral (
    with measured as materialized (
        select * from measured_runs(w.workspace_id, array[t.project_id], t.day, t.day + interval '24 hours')
    ),
    spread as (
        select s.is_root, array_agg(s.place) as places, array_agg(s.n) as counts
        from (
            select m.is_root, u.place, count(*) as n
            from measured m
            cross join lateral unnest(m.places) as u (place)
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
    select s.*, p.places, p.counts
    from summed s
    join spread p using (is_root)
) c

-- name: close_figured_day
insert into figured_days (until) values (:day::timestamptz + interval '24 hours')
on conflict (is_the_only) do update set until = excluded.until

-- name: projects_of_workspace
-- Deleted ones too: runs may have come to them since.
select id from projects where workspace_id = :workspace_id and (:ids::uuid[] is null or id = any(:ids::uuid[]))

-- name: runs_of_days
select coalesce(sum(runs), 0)::bigint from figure_days
where project_id = any(:projects::uuid[]) and day >= :first_day::timestamptz and day < :last_day::timestamptz
  and (:is_root::boolean is null or is_root = :is_root::boolean)

-- name: figures_of_days
-- What `figures_of_runs` tells, of whole days as they were counted, and run by run of the rest and of days that were
-- touched since. Percentiles are told by place. A run's place counts one.
with touched as materialized (
    select distinct project_id, day from touched_days
    where project_id = any(:projects::uuid[]) and day >= :first_day::timestamptz and day < :last_day::timestamptz
),
parts as materialized (
    select d.project_id, d.day as began, d.is_root, d.runs, d.failed, d.streamed, d.timed, d.seconds, d.prompt_tokens,
           d.completion_tokens, d.total_tokens, d.prompt_cost, d.completion_cost, d.total_cost, d.last_start, d.places,
           d.counts
    from figure_days d
    where d.project_id = any(:projects::uuid[]) and d.day >= :first_day::timestamptz and d.day < :last_day::timestamptz
      and not exists (select from touched t where t.project_id = d.project_id and t.day = d.day)
    union all
    -- Named once for all stretches of time: it is long to plan.
    select m.*
    from (
        select :projects::uuid[] as projects, :start::timestamptz as since, :first_day::timestamptz as before
        union all
        select :projects::uuid[], :last_day::timestamptz, coalesce(:before::timestamptz, 'infinity')
        union all
        select array[t.project_id], t.day, t.day + interval '24 hours' from touched t
    ) s
    cross join lateral measured_runs(:workspace_id, s.projects, s.since, s.before) m
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
    select s.bucket, s.group_name, array_agg(s.place order by s.place) as places,
           array_agg(s.n order by s.place) as counts
    from (
        select c.bucket, c.group_name, u.place, sum(coalesce(u.n, 1))::bigint as n
        from chosen c
        cross join lateral unnest(c.places, c.counts) as u (place, n)
        group by 1, 2, 3
    ) s
    group by 1, 2
)
select s.*, p.places, p.counts
from summed s
join spread p on p.group_name = s.group_name and p.bucket is not distinct from s.bucket
order by s.run_count desc, s.group_name
limit :limit::int
