-- name: insert_deployment
-- No row comes back where the name is taken, also by a create that commits at the same moment. A deployment that names
-- a listener is that listener's from the start.
insert into deployments
    (id, workspace_id, name, source, integration_id, repo_url, deployment_type, build_on_push, install_command,
     build_command, asked_url, listener_id, held_by, k8s_namespace, secrets_sealed, status, tracing_project_id,
     service_key_id, service_key_sealed)
values
    (:id, :workspace_id, :name, :source, :integration_id, :repo_url, :deployment_type, :build_on_push,
     :install_command, :build_command, :asked_url, :listener_id, :listener_id, :k8s_namespace, :secrets_sealed,
     'AWAITING_DATABASE', :tracing_project_id, :service_key_id, :service_key_sealed)
on conflict (workspace_id, name) do nothing
returning id

-- name: find_deployments
-- Each deployment with what its latest revision was made of; one deployment is a list of one id. What a listener said
-- last is not known to be so any more once it has been silent for a while; with nothing that runs or is on its way
-- there, a deployment is not used.
select d.id, d.workspace_id, d.name, d.display_name, d.source, d.integration_id, d.repo_url, d.deployment_type,
       d.build_on_push, d.install_command, d.build_command, coalesce(d.asked_url, d.custom_url) as custom_url,
       d.listener_id, d.k8s_namespace, standing.status, standing.is_silent, d.status_message, l.last_seen_at,
       d.latest_revision_id, d.active_revision_id, d.created_at, d.updated_at,
       r.source as revision_source, r.repo_ref, r.graph_config_path, r.repo_commit_sha, r.image_uri, r.image_version,
       r.source_tarball_path, r.resource_spec, r.secret_references,
       coalesce(r.secrets_sealed, d.secrets_sealed) as secrets_sealed
from deployments d
left join revisions r on r.id = d.latest_revision_id
left join listeners l on l.id = d.held_by
cross join lateral (
    select l.last_seen_at < now() - :silent_after::interval as is_silent
) silence
cross join lateral (
    select coalesce(silence.is_silent and d.status <> 'AWAITING_DELETE', false) as is_silent, case
        when d.status = 'AWAITING_DELETE' then d.status
        when silence.is_silent then 'UNKNOWN'
        when d.status = 'READY' and d.active_revision_id is null and not exists (
            select from revisions w
            where w.deployment_id = d.id and w.status in
                ('CREATING', 'QUEUED', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING')
        ) then 'UNUSED'
        else d.status
    end as status
) standing
where d.workspace_id = :workspace_id
  and (:ids::uuid[] is null or d.id = any(:ids))
  and (:name::text is null or d.name = :name)
  and (:name_contains::text is null or position(lower(:name_contains) in lower(d.name)) > 0)
  and (:status::text is null or standing.status = :status)
  and (:deployment_type::text is null or d.deployment_type = :deployment_type)
  and (:image_version::text is null or r.image_version = :image_version)
  and (:names_listener::boolean is null or (d.listener_id is not null) = :names_listener)
order by d.created_at desc, d.id desc
limit :limit offset :offset

-- name: lock_deployment
-- Every change of a deployment or of its revisions takes this lock first, which puts them in one order. It lets the
-- logs of a revision at work go on arriving.
select id, name, source, integration_id, repo_url, deployment_type, build_on_push, install_command, build_command,
       coalesce(asked_url, custom_url) as custom_url, listener_id, k8s_namespace, secrets_sealed, status,
       latest_revision_id, tracing_project_id, delete_tracing_project, service_key_id
from deployments
where id = :id and workspace_id = :workspace_id
for no key update

-- name: lock_deployments
-- In the order of their ids, as whoever takes several of these locks must.
select id from deployments
where id = any(:ids::uuid[]) and workspace_id = :workspace_id
order by id
for no key update

-- name: update_deployment
-- Null keeps what is there.
update deployments set
    display_name = coalesce(:display_name, display_name),
    build_on_push = coalesce(:build_on_push, build_on_push),
    install_command = coalesce(:install_command, install_command),
    build_command = coalesce(:build_command, build_command),
    asked_url = coalesce(:asked_url, asked_url),
    updated_at = now()
where id = :id

-- name: keep_secrets
-- For the first revision, which is still to come.
update deployments set secrets_sealed = :secrets_sealed where id = :id

-- name: set_latest_revision
-- From now on the secrets are the revision's.
update deployments set latest_revision_id = :revision_id, secrets_sealed = null, updated_at = now() where id = :id

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
