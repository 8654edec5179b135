-- name: run_stats
-- By group, and by time bucket if a stride is given. Conditions replace the last `true`. The largest groups come first.
select date_bin(:stride::interval, f.start_time, :origin::timestamptz) as bucket, f.group_name,
       count(*) as run_count,
       percentile_cont(array[0.5, 0.99, 0.95]) within group (order by f.latency) as latency,
       avg(f.latency)::float8 as latency_avg,
       percentile_cont(array[0.5, 0.99]) within group (order by f.first_token) as first_token,
       least(sum(f.prompt_tokens), 9e18)::bigint as prompt_tokens,
       least(sum(f.completion_tokens), 9e18)::bigint as completion_tokens,
       least(sum(f.total_tokens), 9e18)::bigint as total_tokens,
       percentile_cont(array[0.5, 0.99]) within group (order by f.prompt_tokens) as prompt_tokens_spread,
       percentile_cont(array[0.5, 0.99]) within group (order by f.completion_tokens) as completion_tokens_spread,
       percentile_cont(array[0.5, 0.99]) within group (order by f.total_tokens) as total_tokens_spread,
       sum(f.prompt_cost)::text as prompt_cost, sum(f.completion_cost)::text as completion_cost,
       sum(f.total_cost)::text as total_cost,
       percentile_cont(array[0.5, 0.99]) within group (order by f.total_cost::float8) as cost,
       avg(f.failed)::float8 as error_rate, avg(f.streamed)::float8 as streaming_rate,
       max(f.start_time) as last_run_start_time
from (
    -- `offset 0` makes Postgres compute the usage of each run once, and not once for each statistic.
    select r.start_time, g.name as group_name, r.latency,
           extract(epoch from r.first_token_time - r.start_time)::float8 as first_token,
           r.prompt_tokens, r.completion_tokens, r.total_tokens, r.prompt_cost, r.completion_cost, r.total_cost,
           (r.status = 'error')::int as failed, (r.first_token_time is not null)::int as streamed
    from readable_runs r
    cross join lateral group_names(
        :attribute::text, :path::text, r.name, r.run_type, r.tags, r.extra, r.session_id, r.model_name
    ) as g (name)
    where g.name is not null and (:groups::text[] is null or g.name = any(:groups::text[])) and true
    offset 0
) f
group by 1, 2
order by run_count desc, 2
limit :limit::int

-- name: feedback_stats
-- Feedback scores of the same runs by key, and the count of each value.
select date_bin(:stride::interval, r.start_time, :origin::timestamptz) as bucket, g.name as group_name, f.key, f.value,
       count(*) as n, count(f.score) as scored, sum(f.score)::float8 as total
from readable_runs r
cross join lateral group_names(
    :attribute::text, :path::text, r.name, r.run_type, r.tags, r.extra, r.session_id, r.model_name
) as g (name)
join readable_feedback f on f.workspace_id = r.workspace_id and f.run_id = r.id
where g.name is not null and (:groups::text[] is null or g.name = any(:groups::text[])) and true
group by 1, 2, 3, 4
