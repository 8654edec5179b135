-- What was used, by caller and model.

-- The usage of a workspace's runs that started from `since` until before `before`, in rows like those of `daily_usage`.
create or replace function run_usage(workspace uuid, projects uuid[], since timestamptz, before timestamptz)
returns table (
    project_id uuid, day timestamptz, api_key_id uuid, user_id uuid, model_provider text, model_name text, runs bigint,
    failed bigint, prompt_tokens numeric, completion_tokens numeric, prompt_cost numeric, completion_cost numeric,
    total_cost numeric, unpriced_runs bigint
)
language sql stable
begin atomic
    select r.session_id, date_trunc('day', r.start_time, 'UTC'), t.api_key_id, t.user_id, r.model_provider,
           r.model_name, count(*), count(*) filter (where r.status = 'error'), sum(r.prompt_tokens), sum(r.completion_tokens), sum(r.prompt_cost),
           sum(r.completion_cost), sum(r.total_cost),
           count(*) filter (where r.total_cost is null and r.total_tokens > 0)
    from (
        select x.session_id, x.start_time, x.trace_id, x.model_provider, x.model_name, x.status, x.prompt_tokens,
               x.completion_tokens, x.total_tokens, x.prompt_cost, x.completion_cost, x.total_cost
        from readable_runs x
        where x.workspace_id = workspace and x.session_id = any(projects)
          and x.start_time >= since and x.start_time < before
        offset 0
    ) r
    left join traces t on t.workspace_id = workspace and t.trace_id = r.trace_id
    group by 1, 2, 3, 4, 5, 6;
end;

-- The same rows for all projects of workspaces: whole days as they were counted, the rest and changed days from the runs. The
-- four times are in order; `first_day` to `last_day` are counted days.
create or replace function usage_between(
    workspaces uuid[], starts timestamptz, first_day timestamptz, last_day timestamptz, ends timestamptz
) returns table (
    workspace_id uuid, project_id uuid, day timestamptz, api_key_id uuid, user_id uuid, model_provider text,
    model_name text, runs bigint, failed bigint, prompt_tokens numeric, completion_tokens numeric, prompt_cost numeric,
    completion_cost numeric, total_cost numeric, unpriced_runs bigint
)
language sql stable
begin atomic
    with owned as (
        select p.workspace_id, p.id from projects p where p.workspace_id = any(workspaces)
    ),
    stale as materialized (
        select o.workspace_id, s.project_id, s.day
        from stale_days s
        join owned o on o.id = s.project_id
        where s.day >= first_day and s.day < last_day
        group by 1, 2, 3
        having not bool_or(s.has_deletion)
            and not exists (
                select from daily_usage d where d.project_id = s.project_id and d.day = s.day and d.is_final
            )
    )
    select d.workspace_id, d.project_id, d.day, d.api_key_id, d.user_id, d.model_provider, d.model_name, d.runs,
           d.failed, d.prompt_tokens, d.completion_tokens, d.prompt_cost, d.completion_cost, d.total_cost,
           d.unpriced_runs
    from daily_usage d
    where d.workspace_id = any(workspaces) and d.day >= first_day and d.day < last_day
      and not exists (select from stale t where t.project_id = d.project_id and t.day = d.day)
    union all
    select s.workspace_id, u.*
    from (
        select o.workspace_id, array_agg(o.id) as projects, starts as since, first_day as before from owned o group by 1
        union all
        select o.workspace_id, array_agg(o.id), last_day, ends from owned o group by 1
        union all
        select t.workspace_id, array[t.project_id], t.day, t.day + interval '24 hours' from stale t
    ) s
    cross join lateral run_usage(s.workspace_id, s.projects, s.since, s.before) u;
end;
