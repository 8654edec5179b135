-- name: insert_deployment
-- No row comes back where the name is taken, also by a create that commits at the same moment.
insert into deployments
    (id, workspace_id, name, source, integration_id, repo_url, deployment_type, build_on_push, install_command,
     build_command, status, tracing_project_id, service_key_id, service_key_sealed)
values
    (:id, :workspace_id, :name, :source, :integration_id, :repo_url, :deployment_type, :build_on_push,
     :install_command, :build_command, 'AWAITING_DATABASE', :tracing_project_id, :service_key_id, :service_key_sealed)
on conflict (workspace_id, name) do nothing
returning id

-- name: find_deployments
-- Each deployment with what its latest revision was made of; one deployment is a list of one id.
select d.id, d.workspace_id, d.name, d.display_name, d.source, d.integration_id, d.repo_url, d.deployment_type,
       d.build_on_push, d.install_command, d.build_command, d.custom_url, d.status, d.status_message,
       d.latest_revision_id, d.active_revision_id, d.created_at, d.updated_at,
       r.repo_ref, r.graph_config_path, r.repo_commit_sha, r.secrets_sealed
from deployments d
join revisions r on r.id = d.latest_revision_id
where d.workspace_id = :workspace_id
  and (:ids::uuid[] is null or d.id = any(:ids))
  and (:name::text is null or d.name = :name)
  and (:name_contains::text is null or position(lower(:name_contains) in lower(d.name)) > 0)
  and (:status::text is null or d.status = :status)
  and (:deployment_type::text is null or d.deployment_type = :deployment_type)
order by d.created_at desc, d.id desc
limit :limit offset :offset

-- name: lock_deployment
-- Every change of a deployment or of its revisions takes this lock first, which puts them in one order. It lets the
-- logs of a revision at work go on arriving.
select id, name, source, integration_id, repo_url, deployment_type, build_on_push, custom_url, status,
       latest_revision_id, tracing_project_id, delete_tracing_project, service_key_id
from deployments
where id = :id and workspace_id = :workspace_id
for no key update

-- name: update_deployment
-- Null keeps what is there.
update deployments set
    display_name = coalesce(:display_name, display_name),
    build_on_push = coalesce(:build_on_push, build_on_push),
    install_command = coalesce(:install_command, install_command),
    build_command = coalesce(:build_command, build_command),
    updated_at = now()
where id = :id

-- name: set_latest_revision
update deployments set latest_revision_id = :revision_id, updated_at = now() where id = :id

-- name: set_active_revision
update deployments set active_revision_id = :revision_id, updated_at = now() where id = :id

-- name: await_delete
update deployments set
    status = 'AWAITING_DELETE',
    status_message = null,
    delete_tracing_project = delete_tracing_project or :delete_tracing_project,
    updated_at = now()
where id = :id

-- name: report_deployment
-- The address stays where a report does not name one; the reason is always the report's own.
update deployments set
    status = :status,
    status_message = :reason,
    custom_url = coalesce(:custom_url, custom_url),
    updated_at = now()
where id = :id

-- name: delete_deployment
delete from deployments where id = :id
