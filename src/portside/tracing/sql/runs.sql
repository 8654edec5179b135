-- name: runs_by_id
-- Large fields are read only if they are selected. They are returned as bytes, which become part of the JSON unchanged.
-- Tokens and costs of a root are those of its trace, whose id need not be that of the root: spans have other ids.
select r.id, r.name, r.run_type, r.status, r.trace_id, r.dotted_order, r.parent_run_id, r.session_id,
       r.reference_example_id, r.start_time, r.end_time, r.tags, r.error,
       case when 'inputs' = any(:fields::text[]) then convert_to(r.inputs, 'UTF8') end as inputs,
       case when 'outputs' = any(:fields::text[]) then convert_to(r.outputs, 'UTF8') end as outputs,
       case when 'extra' = any(:fields::text[]) then convert_to(r.extra, 'UTF8') end as extra,
       case when 'events' = any(:fields::text[]) then convert_to(r.events, 'UTF8') end as events,
       case when 'serialized' = any(:fields::text[]) then convert_to(r.serialized, 'UTF8') end as serialized,
       r.first_token_time, r.thread_id, coalesce(u.prompt_tokens, r.prompt_tokens) as prompt_tokens,
       coalesce(u.completion_tokens, r.completion_tokens) as completion_tokens,
       coalesce(u.total_tokens, r.total_tokens) as total_tokens, coalesce(u.prompt_cost, r.prompt_cost) as prompt_cost,
       coalesce(u.completion_cost, r.completion_cost) as completion_cost,
       coalesce(u.total_cost, r.total_cost) as total_cost,
       r.usage, r.prompt_cost_details::text as prompt_cost_details,
       r.completion_cost_details::text as completion_cost_details, f.stats as feedback_stats, t.tier as trace_tier
from readable_runs r
left join lateral (
    select least(coalesce(sum(m.prompt_tokens), 0), 9e18)::bigint as prompt_tokens,
           least(coalesce(sum(m.completion_tokens), 0), 9e18)::bigint as completion_tokens,
           least(coalesce(sum(m.total_tokens), 0), 9e18)::bigint as total_tokens, sum(m.prompt_cost) as prompt_cost,
           sum(m.completion_cost) as completion_cost, sum(m.total_cost) as total_cost
    from readable_runs m
    where m.workspace_id = r.workspace_id and m.trace_id = r.trace_id and m.run_type = 'llm'
) u on r.is_root and r.run_type <> 'llm'
left join traces t on t.workspace_id = r.workspace_id and t.trace_id = r.trace_id
left join lateral (
    select json_object_agg(k.key, json_build_object('n', k.n, 'avg', k.avg))::text as stats
    from (
        select f.key, count(*) as n, avg(f.score) as avg
        from readable_feedback f
        where f.workspace_id = r.workspace_id and f.run_id = r.id
        group by f.key
    ) k
) f on true
where r.workspace_id = :workspace_id and r.id = any(:ids::uuid[])

-- name: newest_runs
-- Conditions replace `true`. `bytes` tells how much of a page fits into a response before its fields are read.
select r.id, r.start_time,
       run_bytes(:fields::text[], r.tags, r.error, r.stored_inputs, r.stored_outputs, r.extra, r.events, r.serialized)
           as bytes
from readable_runs r where true order by r.start_time desc, r.id desc limit :limit::int

-- name: end_of_window
-- The run that begins the next window of a search. Runs that readers do not see count too, so an index has all that is
-- read. Conditions replace `true`.
select r.start_time, r.id
from (
    select workspace_id, id, project_id as session_id, coalesce(start_time, received_at) as start_time from runs
) r where true order by r.start_time desc, r.id desc offset :rows::int limit 1

-- name: oldest_runs
-- As `newest_runs`, in the other order.
select r.id, r.start_time,
       run_bytes(:fields::text[], r.tags, r.error, r.stored_inputs, r.stored_outputs, r.extra, r.events, r.serialized)
           as bytes
from readable_runs r where true order by r.start_time, r.id limit :limit::int

-- name: bytes_of_runs
-- How much reading the fields would take, so that a response is cut before it is read.
select r.id,
       run_bytes(:fields::text[], r.tags, r.error, r.stored_inputs, r.stored_outputs, r.extra, r.events, r.serialized)
           as bytes
from readable_runs r where r.workspace_id = :workspace_id and r.id = any(:ids::uuid[])

-- name: share_run
-- Shares existing runs only. A shared run keeps its token, and the token of another run is not reused.
insert into shared_runs (share_token, workspace_id, run_id)
select :share_token::uuid, r.workspace_id, r.id
from readable_runs r
where r.workspace_id = :workspace_id and r.id = :run_id
on conflict do nothing

-- name: run_exists
select from readable_runs where workspace_id = :workspace_id and id = :run_id

-- name: share_of_run
select share_token from shared_runs where workspace_id = :workspace_id and run_id = :run_id

-- name: unshare_run
delete from shared_runs where workspace_id = :workspace_id and run_id = :run_id

-- name: shared_run
-- Used without an API key: the token is the credential, and its row names the workspace.
select s.workspace_id, r.id, r.trace_id, r.dotted_order
from shared_runs s
join readable_runs r on r.workspace_id = s.workspace_id and r.id = s.run_id
where s.share_token = :share_token

-- name: attachments_of_runs
select run_id, name, content_type from attachments
where workspace_id = :workspace_id and run_id = any(:ids::uuid[])
order by run_id, name

-- name: attachment
select content_type, data from attachments
where workspace_id = :workspace_id and run_id = :run_id and name = :name

-- name: details_of_runs
-- Columns of other tables, and previews, which do not read the whole value. `user_id` is the user whose API key sent the
-- trace first.
select r.id, r.usage, r.price_id, p.reference_dataset_id, s.share_token, t.user_id,
       case when 'THREAD_ID' = any(:selects::text[]) then coalesce(r.thread_id, thread_of(r.extra)) end as thread_id,
       case when 'INPUTS_PREVIEW' = any(:selects::text[]) then preview_of(r.inputs, :preview_chars::int) end as inputs_preview,
       case when 'OUTPUTS_PREVIEW' = any(:selects::text[]) then preview_of(r.outputs, :preview_chars::int) end as outputs_preview
from readable_runs r
join projects p on p.id = r.session_id
left join shared_runs s on s.workspace_id = r.workspace_id and s.run_id = r.id
left join traces t on t.workspace_id = r.workspace_id and t.trace_id = r.trace_id
where r.workspace_id = :workspace_id and r.id = any(:ids::uuid[])

-- name: ids_of_runs
-- Conditions replace `true`.
select r.id from readable_runs r where true

-- name: projects_of_dataset
select id from projects
where workspace_id = :workspace_id and reference_dataset_id = :dataset_id and deleted_at is null

-- name: count_runs
-- Conditions replace `true`.
select count(*) from readable_runs r where true

-- name: spans_of_trace
-- The runs of a trace without anything large, in the order of their start; of those that started at once, the one above first.
-- The whole positions would fill the memory of a sort. Conditions replace `true`.
select r.id, left(r.name, 500) as name, r.run_type, r.status, r.start_time, r.end_time, r.first_token_time, r.parent_run_id,
       r.trace_id, r.session_id, r.prompt_tokens, r.completion_tokens, r.total_tokens,
       r.prompt_cost, r.completion_cost, r.total_cost
from readable_runs r where true order by r.start_time, length(r.dotted_order), r.id limit :limit::int

-- name: subtree_usage
-- The usage of each run together with all runs below it. Each model run counts for all its ancestors, which its position names.
-- Positions are texts of clients, so their parts are compared as text.
select a.id::uuid as id, min(b.first_token_time) as first_token_time, least(sum(b.prompt_tokens), 9e18)::bigint as prompt_tokens,
       least(sum(b.completion_tokens), 9e18)::bigint as completion_tokens, least(sum(b.total_tokens), 9e18)::bigint as total_tokens,
       sum(b.prompt_cost) as prompt_cost, sum(b.completion_cost) as completion_cost, sum(b.total_cost) as total_cost
from readable_runs b
cross join lateral (
    select distinct right(part, 36) as id from unnest(string_to_array(b.dotted_order, '.')) as part
) a
where b.workspace_id = :workspace_id and b.trace_id = any(:trace_ids::uuid[]) and b.run_type = 'llm'
  and a.id = any(:ids::text[])
group by a.id

-- name: values_of_run
-- The data of a run, each as text, with its size and its first characters. The whole texts are not read.
select v.name, octet_length(v.value) as bytes, left(v.value, :chars::int) as text
from readable_runs r
cross join lateral (values
    (1, 'inputs', r.inputs), (2, 'outputs', r.outputs), (3, 'error', r.error), (4, 'extra', r.extra),
    (5, 'events', r.events), (6, 'serialized', r.serialized)
) as v (number, name, value)
where r.workspace_id = :workspace_id and r.id = :run_id and v.value is not null
order by v.number

-- name: value_of_run
select r.name, convert_to(case :name::text
    when 'inputs' then r.inputs when 'outputs' then r.outputs when 'error' then r.error when 'extra' then r.extra
    when 'events' then r.events when 'serialized' then r.serialized
end, 'UTF8') as value
from readable_runs r where r.workspace_id = :workspace_id and r.id = :run_id

-- name: threads_of_newest_turns
-- The threads of the newest turns (root runs) until a moment. Conditions replace `true`.
select array_agg(distinct t.thread_id) as threads, count(*) as turns
from (
    select r.thread_id from readable_runs r
    where (:moment::timestamptz is null or r.start_time <= :moment::timestamptz) and true
    order by r.start_time desc, r.id desc limit :newest::int
) t

-- name: recent_threads
-- The threads of the newest turns (root runs), the latest first. Conditions replace `true`.
with turns as (
    select r.id, r.thread_id, r.start_time, r.latency, r.status, r.error
    from readable_runs r where true
    order by r.start_time desc, r.id desc limit :newest::int
),
threads as (
    select t.thread_id, count(*) as count, min(t.start_time) as min_start_time, max(t.start_time) as max_start_time,
           percentile_cont(array[0.5, 0.99]) within group (order by t.latency) as latency,
           count(*) filter (where t.status = 'error') as num_errored_turns,
           (array_agg(left(t.error, 250) order by t.start_time desc, t.id desc) filter (where t.status = 'error'))[1] as last_error,
           array_agg(t.id order by t.start_time, t.id) as trace_ids
    from turns t group by t.thread_id
)
select * from threads t
where :moment::timestamptz is null or (t.max_start_time, t.thread_id) < (:moment::timestamptz, :thread_id::text)
order by t.max_start_time desc, t.thread_id desc limit :limit::int

-- name: usage_of_traces
-- Only model runs have tokens and costs. The sum is cut to what fits into a bigint.
select r.trace_id, least(sum(r.total_tokens), 9e18)::bigint as total_tokens, sum(r.total_cost) as total_cost
from readable_runs r
where r.workspace_id = :workspace_id and r.trace_id = any(:trace_ids::uuid[]) and r.run_type = 'llm'
group by r.trace_id

-- name: previews_of_runs
select r.id, preview_of(r.inputs, :chars::int) as inputs, preview_of(r.outputs, :chars::int) as outputs
from readable_runs r where r.workspace_id = :workspace_id and r.id = any(:ids::uuid[])
