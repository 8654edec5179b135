-- name: insert_deployment
-- Returns no row if the name is taken, even by a create that commits at the same moment. A deployment that names a
-- listener is assigned to it from the start.
insert into deployments
    (id, workspace_id, name, source, integration_id, repo_url, deployment_type, build_on_push, install_command,
     build_command, requested_url, listener_id, assigned_listener_id, k8s_namespace, secrets_sealed, status, tracing_project_id,
     service_key_id, service_key_sealed, agent_access, agent_roles, sleep_after_s, pin_threads)
values
    (:id, :workspace_id, :name, :source, :integration_id, :repo_url, :deployment_type, :build_on_push,
     :install_command, :build_command, :requested_url, :listener_id, :listener_id, :k8s_namespace, :secrets_sealed,
     'AWAITING_DATABASE', :tracing_project_id, :service_key_id, :service_key_sealed,
     coalesce(:agent_access, 'workspace'), coalesce(:agent_roles::text[], '{}'), coalesce(:sleep_after_s::int, 0),
     coalesce(:pin_threads, 0))
on conflict (workspace_id, name) do nothing
returning id

-- name: find_deployments
-- Deployments with the content of their latest revision; :ids with one id reads one deployment. A deployment whose
-- listener has been silent for a while is UNKNOWN; one without an active or unfinished revision is UNUSED. The platform
-- refuses keys that were revoked or have expired: the listener's, or the one with which the deployment sends its traces.
select d.id, d.workspace_id, d.name, d.display_name, d.source, d.integration_id, d.repo_url, d.deployment_type,
       d.build_on_push, d.install_command, d.build_command, d.requested_url, d.direct_url,
       coalesce(l.compute_type = 'process', false) as is_on_machine, d.listener_id, d.k8s_namespace, effective.status, effective.is_silent, d.status_message, l.last_seen_at,
       d.latest_revision_id, d.active_revision_id, d.agent_access, d.agent_roles, d.sleep_after_s, d.pin_threads,
       d.tracing_project_id,
       d.created_at, d.updated_at,
       r.source as revision_source, r.repo_ref, r.graph_config_path, r.repo_commit_sha, r.repo_commit_author,
       r.repo_commit_subject, r.image_uri, r.image_version,
       r.source_tarball_path, r.resource_spec, r.secret_references,
       coalesce(r.ignored_secrets, '{}') as ignored_secrets,
       coalesce(r.secrets_sealed, d.secrets_sealed) as secrets_sealed, m.metrics ->> 'server_version' as server_version,
       coalesce((m.metrics ->> 'is_asleep')::boolean, false) as is_asleep,
       (lk.revoked_at is not null or lk.expires_at <= now()) as has_refused_listener,
       (sk.revoked_at is not null or sk.expires_at <= now()) as has_refused_key,
       case when d.build_on_push then p.failure end as poll_failure
from deployments d
left join branch_polls p on p.deployment_id = d.id
left join deployment_metrics m on m.deployment_id = d.id
left join revisions r on r.id = d.latest_revision_id
left join listeners l on l.id = d.assigned_listener_id
left join api_keys lk on lk.id = l.key_id
left join api_keys sk on sk.id = d.service_key_id
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
) effective
where d.workspace_id = :workspace_id
  and (:ids::uuid[] is null or d.id = any(:ids))
  and (:name::text is null or d.name = :name)
  and (:name_contains::text is null or position(lower(:name_contains) in lower(d.name)) > 0)
  and (:status::text is null or effective.status = :status)
  and (:deployment_type::text is null or d.deployment_type = :deployment_type)
  and (:tracing_project_id::uuid is null or d.tracing_project_id = :tracing_project_id)
  and (:image_version::text is null or r.image_version = :image_version)
  and (:names_listener::boolean is null or (d.listener_id is not null) = :names_listener)
order by d.created_at desc, d.id desc
limit :limit offset :offset

-- name: lock_deployment
-- Every change of a deployment or of its revisions takes this lock first. It does not block inserts into the logs of
-- its revisions, which need the key alone.
select d.id, d.workspace_id, d.name, d.source, d.integration_id, d.repo_url, d.deployment_type, d.build_on_push,
       d.install_command, d.build_command, d.requested_url, d.direct_url, d.listener_id, d.k8s_namespace,
       d.secrets_sealed, d.status, d.latest_revision_id, d.tracing_project_id, d.delete_tracing_project,
       d.service_key_id, coalesce(l.compute_type = 'process', false) as is_on_machine
from deployments d
left join listeners l on l.id = d.assigned_listener_id
where d.id = :id and d.workspace_id = :workspace_id
for no key update of d

-- name: lock_deployments
-- Locks in the order of the ids, so that two such calls cannot deadlock.
select id from deployments
where id = any(:ids::uuid[]) and workspace_id = :workspace_id
order by id
for no key update

-- name: update_deployment
-- Null keeps a value; an empty requested address clears it. A cluster's listener reports the requested address as the direct
-- one, without a slash at its end. So a change of the requested address clears the direct one, until the next report.
update deployments set
    display_name = coalesce(:display_name, display_name),
    build_on_push = coalesce(:build_on_push, build_on_push),
    install_command = coalesce(:install_command, install_command),
    build_command = coalesce(:build_command, build_command),
    requested_url = nullif(coalesce(:requested_url, requested_url), ''),
    direct_url = case when :requested_url is not null and rtrim(direct_url, '/') = rtrim(requested_url, '/')
                      then null else direct_url end,
    agent_access = coalesce(:agent_access, agent_access),
    agent_roles = coalesce(:agent_roles::text[], agent_roles),
    sleep_after_s = coalesce(:sleep_after_s::int, sleep_after_s),
    pin_threads = coalesce(:pin_threads, pin_threads),
    updated_at = now()
where id = :id

-- name: lock_custom_hosts
-- One transaction at a time gives a host to a deployment on a cluster. The key of the lock is "host" in ASCII.
select pg_advisory_xact_lock(x'686f7374'::int)

-- name: has_custom_host
-- Whether another deployment, of any workspace, has an address with this host.
select exists (
    select from deployments, unnest(array[requested_url, direct_url]) url
    where id <> :id and lower(substring(url from '^https?://([^/:]+)')) = :host
)

-- name: access_of_deployment
-- Agent servers ask this about every key that they do not know yet.
select agent_access, agent_roles from deployments where id = :id and workspace_id = :workspace_id

-- name: keep_secrets
-- Until there is a first revision, the deployment keeps the secrets.
update deployments set secrets_sealed = :secrets_sealed where id = :id

-- name: set_latest_revision
-- From now on the revision has the secrets.
update deployments set latest_revision_id = :revision_id, secrets_sealed = null, updated_at = now() where id = :id

-- name: set_active_revision
update deployments set active_revision_id = :revision_id, updated_at = now() where id = :id

-- name: request_delete
-- The row stays until its listener has removed the compute (`delete_deployment`).
update deployments set
    status = 'AWAITING_DELETE',
    status_message = null,
    delete_tracing_project = delete_tracing_project or :delete_tracing_project,
    updated_at = now()
where id = :id

-- name: report_deployment
-- A report without an address keeps the address; the reason is always replaced.
update deployments set
    status = :status,
    status_message = :reason,
    direct_url = coalesce(:direct_url, direct_url),
    updated_at = now()
where id = :id

-- name: report_delete_failure
update deployments set status_message = :reason, updated_at = now() where id = :id

-- name: report_stopped_deployments
-- A deployment that is new, being deleted or already said to be down keeps its status and the reason.
update deployments set status = 'UNKNOWN', status_message = :reason, updated_at = now()
where id = any(:ids::uuid[]) and status = 'READY' and active_revision_id is not null

-- name: deployment_addresses
-- Deployments on machines that have an address, oldest first. One that is being deleted has none: another program may
-- get its port.
select d.name, d.direct_url, d.requested_url
from deployments d
join listeners l on l.id = d.assigned_listener_id
where d.workspace_id = :workspace_id and d.direct_url is not null and l.compute_type = 'process'
  and d.status <> 'AWAITING_DELETE'
order by d.created_at, d.id

-- name: delete_deployment
delete from deployments where id = :id

-- name: deployments_without_key
-- Skips rows that another request has locked, which polls at the same time: that one replaces their keys.
select d.id, d.name
from deployments d
join api_keys k on k.id = d.service_key_id
where d.workspace_id = :workspace_id and d.status <> 'AWAITING_DELETE'
  and (k.revoked_at is not null or k.expires_at <= now())
for update of d skip locked

-- name: replace_deployment_key
update deployments set service_key_id = :service_key_id, service_key_sealed = :service_key_sealed where id = :id

-- name: move_repositories
-- After a restore: repositories in the home folder of before are in the new one, as the example's is.
update deployments set repo_url = replace(repo_url, :before || '/', :after || '/')
where starts_with(repo_url, :before || '/') or starts_with(repo_url, 'file://' || :before || '/')
returning id
