-- name: projects_by_name
select id, name from projects
where workspace_id = :workspace_id and name = any(:names::text[]) and deleted_at is null

-- name: projects_by_id
select id from projects
where workspace_id = :workspace_id and id = any(:ids::uuid[]) and deleted_at is null

-- name: insert_projects
-- Sorted by name, so that two requests that create the same projects wait for each other instead of deadlocking.
insert into projects (id, workspace_id, name)
select x.id, :workspace_id, x.name
from unnest(:ids::uuid[], :names::text[]) as x (id, name)
order by x.name
on conflict do nothing

-- name: project_by_id
select id, workspace_id as tenant_id, name, coalesce(start_time, created_at) as start_time, end_time, description, extra,
       reference_dataset_id, default_dataset_id, trace_tier
from projects
where workspace_id = :workspace_id and id = :project_id and deleted_at is null

-- name: list_projects
-- The chosen order fills one of two sort keys: text or seconds. Conditions replace `true`.
select p.id, p.workspace_id as tenant_id, p.name, coalesce(p.start_time, p.created_at) as start_time, p.end_time,
       p.description, p.extra, p.reference_dataset_id, p.default_dataset_id, p.trace_tier
from projects p
where p.workspace_id = :workspace_id and p.deleted_at is null
  and (:ids::uuid[] is null or p.id = any(:ids::uuid[]))
  and (:name::text is null or p.name = :name::text)
  and (:name_contains::text is null or position(lower(:name_contains::text) in lower(p.name)) > 0)
  and (:reference_datasets::uuid[] is null or p.reference_dataset_id = any(:reference_datasets::uuid[]))
  and (:reference_free::boolean is null or (p.reference_dataset_id is null) = :reference_free::boolean)
  and (:metadata::jsonb is null or p.extra -> 'metadata' @> :metadata::jsonb)
  and true
order by
    case when :descending::boolean and :sort_by::text = 'name' then p.name end desc,
    case when not :descending::boolean and :sort_by::text = 'name' then p.name end,
    case when not :descending::boolean and :sort_by::text <> 'name' then coalesce(p.start_time, p.created_at) end,
    coalesce(p.start_time, p.created_at) desc, p.id desc
limit :limit::int offset :offset::int

-- name: feedback_of_projects
-- Feedback on the projects themselves.
select session_id, key, count(*) as n, avg(score) as avg
from readable_feedback
where workspace_id = :workspace_id and run_id is null and session_id = any(:ids::text[])
group by session_id, key

-- name: create_project
-- No row if the workspace has a project of this id or name already.
insert into projects (
    id, workspace_id, name, description, extra, start_time, reference_dataset_id, default_dataset_id, trace_tier
)
values (
    :id, :workspace_id, :name, :description, :extra::jsonb, :start_time, :reference_dataset_id, :default_dataset_id,
    :trace_tier
)
on conflict do nothing
returning id

-- name: update_project
-- Null leaves a column unchanged. No row if the project does not exist, or if another project has the name.
update projects p set
    name = coalesce(:name::text, name),
    description = coalesce(:description::text, description),
    extra = coalesce(:extra::jsonb, extra),
    start_time = coalesce(:start_time::timestamptz, start_time),
    end_time = coalesce(:end_time::timestamptz, end_time),
    reference_dataset_id = coalesce(:reference_dataset_id::uuid, reference_dataset_id),
    default_dataset_id = coalesce(:default_dataset_id::uuid, default_dataset_id),
    trace_tier = coalesce(:trace_tier::text, trace_tier)
where workspace_id = :workspace_id and id = :project_id and deleted_at is null
  and not exists (
      select from projects o
      where o.workspace_id = :workspace_id and o.name = :name::text and o.deleted_at is null and o.id <> p.id
  )
returning id

-- name: delete_projects
-- One statement for the projects and their runs: if it fails, the projects are still there to be deleted again. The rows of
-- traces stay, because they were billed.
with closed as (
    update projects set deleted_at = now()
    where workspace_id = :workspace_id and id = any(:ids::uuid[]) and deleted_at is null
),
deleted as (
    delete from runs where workspace_id = :workspace_id and project_id = any(:ids::uuid[]) returning id
),
without_attachments as (
    delete from attachments a using deleted where a.workspace_id = :workspace_id and a.run_id = deleted.id
),
unshared as (
    delete from shared_runs s using deleted where s.workspace_id = :workspace_id and s.run_id = deleted.id
)
delete from feedback f using deleted where f.workspace_id = :workspace_id and f.run_id = deleted.id
