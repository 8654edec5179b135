-- name: runs_by_id
-- Large fields are read only if they are selected. They are returned as bytes, which become part of the JSON unchanged.
select r.id, r.name, r.run_type, r.status, r.trace_id, r.dotted_order, r.parent_run_id, r.session_id,
       r.reference_example_id, r.start_time, r.end_time, r.tags, r.error,
       case when 'inputs' = any(:shown::text[]) then convert_to(r.inputs, 'UTF8') end as inputs,
       case when 'outputs' = any(:shown::text[]) then convert_to(r.outputs, 'UTF8') end as outputs,
       case when 'extra' = any(:shown::text[]) then convert_to(r.extra, 'UTF8') end as extra,
       case when 'events' = any(:shown::text[]) then convert_to(r.events, 'UTF8') end as events,
       case when 'serialized' = any(:shown::text[]) then convert_to(r.serialized, 'UTF8') end as serialized,
       r.first_token_time, r.prompt_tokens, r.completion_tokens, r.total_tokens,
       r.prompt_cost, r.completion_cost, r.total_cost, f.stats as feedback_stats, t.tier as trace_tier
from readable_runs r
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
       run_bytes(:shown::text[], r.tags, r.error, r.inputs, r.outputs, r.extra, r.events, r.serialized) as bytes
from readable_runs r where true order by r.start_time desc, r.id desc limit :limit::int

-- name: oldest_runs
select r.id, r.start_time,
       run_bytes(:shown::text[], r.tags, r.error, r.inputs, r.outputs, r.extra, r.events, r.serialized) as bytes
from readable_runs r where true order by r.start_time, r.id limit :limit::int

-- name: bytes_of_runs
select r.id,
       run_bytes(:shown::text[], r.tags, r.error, r.inputs, r.outputs, r.extra, r.events, r.serialized) as bytes
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
-- Columns of other tables. `user_id` is the user whose API key sent the trace first.
select r.id, r.usage, p.reference_dataset_id, s.share_token, t.user_id
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
