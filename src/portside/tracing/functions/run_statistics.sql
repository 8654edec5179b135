-- Statistics of runs.

-- The histogram bin of a value: 2000 bins for each measure, the first for zero and less, the others by the logarithm.
-- `percentiles.py` reads them.
create or replace function histogram_bin(measure int, value float8) returns smallint
language sql immutable
return (measure * 2000 + case
    when value is null then null
    when value < 1e-9 then 0
    else 1000 + least(floor(ln(value) / ln(1.05)), 990)
end)::smallint;

-- The groups that statistics count a run under: one group, or one for each of its tags. Without an attribute all runs are
-- one group.
create or replace function group_names(
    attribute text, path text, name text, run_type text, tags text[], extra text, session_id uuid, model_name text
) returns setof text
language sql immutable
begin atomic
    select case attribute
               when 'name' then name
               when 'run_type' then run_type
               when 'project' then session_id::text
               when 'model' then model_name
               when 'node' then case when position('langgraph_node' in extra) > 0
                                     then parse_json(extra) #>> '{metadata,langgraph_node}' end
               when 'thread' then thread_of(extra)
               when 'user' then case when position('user_id"' in extra) > 0 then (
                   select coalesce(m ->> 'user_id', m ->> 'langgraph_auth_user_id')
                   from (select parse_json(extra) -> 'metadata' as m) x
               ) end
               -- Data without such a key is not parsed. A key with other characters than these may be escaped there.
               when 'metadata' then case when position(path in extra) > 0 or path ~ '[^ !#-\[\]-~]'
                                         then parse_json(extra) -> 'metadata' ->> path end
               else ''
           end
    where attribute is distinct from 'tag'
    union all
    select distinct tag from unnest(tags) as tag where attribute = 'tag';
end;

-- The measurements of a workspace's runs that started from `since` until before `before`, in rows that can be added to
-- `daily_run_stats`.
create or replace function run_measurements(workspace uuid, projects uuid[], since timestamptz, before timestamptz)
returns table (
    project_id uuid, started timestamptz, is_root boolean, runs bigint, failed bigint, streamed bigint, timed bigint,
    seconds float8, prompt_tokens bigint, completion_tokens bigint, total_tokens bigint, prompt_cost numeric,
    completion_cost numeric, total_cost numeric, last_start timestamptz, bins smallint[], counts bigint[]
)
language sql stable
begin atomic
    select m.project_id, m.start_time, m.is_root, 1::bigint, m.failed, m.streamed, (m.latency is not null)::int::bigint,
           m.latency, m.prompt_tokens, m.completion_tokens, m.total_tokens, m.prompt_cost,
           m.completion_cost, m.total_cost, m.start_time,
           array_remove(
               array[
                   histogram_bin(0, m.latency), histogram_bin(1, m.first_token), histogram_bin(2, m.prompt_tokens),
                   histogram_bin(3, m.completion_tokens), histogram_bin(4, m.total_tokens),
                   histogram_bin(5, m.total_cost::float8)
               ],
               null
           ),
           '{}'::bigint[]
    from (
        -- `offset 0` makes Postgres read a run's reported usage once, not once for each column above.
        select r.session_id as project_id, r.start_time, r.is_root, (r.status = 'error')::int::bigint as failed,
               (r.first_token_time is not null)::int::bigint as streamed, r.latency,
               extract(epoch from r.first_token_time - r.start_time)::float8 as first_token,
               r.prompt_tokens, r.completion_tokens, r.total_tokens, r.prompt_cost, r.completion_cost, r.total_cost
        from readable_runs r
        where r.workspace_id = workspace and r.session_id = any(projects)
          and r.start_time >= since and r.start_time < before
        offset 0
    ) m;
end;
