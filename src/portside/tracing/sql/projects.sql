-- name: projects_by_name
select id, name from projects
where workspace_id = :workspace_id and name = any(:names::text[]) and deleted_at is null

-- name: projects_by_id
select id from projects
where workspace_id = :workspace_id and id = any(:ids::uuid[]) and deleted_at is null

-- name: insert_projects
-- Sorted by name, so that two deliveries that make the same projects wait for each other instead of deadlocking.
insert into projects (id, workspace_id, name)
select x.id, :workspace_id, x.name
from unnest(:ids::uuid[], :names::text[]) as x (id, name)
order by x.name
on conflict do nothing

-- name: list_projects
select id, workspace_id as tenant_id, name, created_at as start_time
from projects
where workspace_id = :workspace_id and deleted_at is null
  and (:ids::uuid[] is null or id = any(:ids::uuid[]))
  and (:name::text is null or name = :name::text)
  and (:name_contains::text is null or position(lower(:name_contains::text) in lower(name)) > 0)
order by created_at desc, id desc
limit :limit::int offset :offset::int

-- name: delete_project
update projects set deleted_at = now()
where workspace_id = :workspace_id and id = :project_id and deleted_at is null

-- name: delete_runs_of_project
-- The traces stay: what was received has been billed.
with gone as (
    delete from runs where workspace_id = :workspace_id and project_id = :project_id returning id
),
without_attachments as (
    delete from attachments a using gone where a.workspace_id = :workspace_id and a.run_id = gone.id
)
delete from feedback f using gone where f.workspace_id = :workspace_id and f.run_id = gone.id
