-- name: insert_revision
-- The caller holds the deployment's lock, so no other insert gets the same number.
insert into revisions
    (id, deployment_id, number, status, source, repo_ref, repo_commit_sha, graph_config_path, image_uri, image_version,
     source_tarball_path, install_command, build_command, resource_spec, secret_references, built_from, secrets_sealed,
     ignored_secrets)
select :id, :deployment_id, coalesce(max(number), 0) + 1, :status, :source, :repo_ref, :repo_commit_sha,
       :graph_config_path, :image_uri, :image_version, :source_tarball_path, :install_command, :build_command,
       :resource_spec, :secret_references, :built_from, :secrets_sealed, :ignored_secrets::text[]
from revisions where deployment_id = :deployment_id

-- name: revision_in_progress
-- The revision that is neither waiting nor terminal; there is at most one.
select id from revisions
where deployment_id = :deployment_id
  and status in ('CREATING', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING')

-- name: get_revision
-- The active revision shows the deployment's message too, such as the reason why nothing runs.
select r.id, r.status, coalesce(r.status_message, case when r.id = d.active_revision_id then d.status_message end)
           as status_message, r.source, r.repo_ref, r.graph_config_path, r.repo_commit_sha,
       r.repo_commit_author, r.repo_commit_subject, r.image_uri, r.source_tarball_path, r.install_command, r.build_command, r.resource_spec, r.secret_references, r.built_from,
       r.is_built, r.secrets_sealed, r.created_at, r.updated_at
from revisions r
join deployments d on d.id = r.deployment_id
where r.id = :id and r.deployment_id = :deployment_id and d.workspace_id = :workspace_id

-- name: latest_revision_of_source
-- The next revision of this source inherits these columns.
select id, repo_ref, graph_config_path, image_uri, source_tarball_path
from revisions
where deployment_id = :deployment_id and source = any(:sources::text[])
order by number desc limit 1

-- name: list_revisions
-- With the same message of the active revision as `get_revision`.
select r.id, r.status, coalesce(r.status_message, case when r.id = d.active_revision_id then d.status_message end)
           as status_message, r.source, r.repo_ref, r.graph_config_path, r.repo_commit_sha,
       r.repo_commit_author, r.repo_commit_subject, r.image_uri, r.source_tarball_path, r.created_at, r.updated_at
from revisions r
join deployments d on d.id = r.deployment_id
where r.deployment_id = :deployment_id
  and (:statuses::text[] is null or r.status = any(:statuses))
  and (:names_listener::boolean is null or (d.listener_id is not null) = :names_listener)
order by r.number desc
limit :limit offset :offset

-- name: revision_history
select status, reason, at from revision_transitions where revision_id = :revision_id order by id

-- name: deployment_source
select source from deployments where id = :id and workspace_id = :workspace_id

-- name: report_revision
-- A report that repeats the status may still set the commit.
update revisions set
    status = :status,
    status_message = coalesce(:reason, status_message),
    repo_commit_sha = coalesce(:repo_commit_sha, repo_commit_sha),
    repo_commit_author = coalesce(:repo_commit_author, repo_commit_author),
    repo_commit_subject = coalesce(:repo_commit_subject, repo_commit_subject),
    is_built = is_built or :status in ('AWAITING_DEPLOY', 'DEPLOYING', 'DEPLOYED'),
    updated_at = now()
where id = :id

-- name: update_waiting_revision
-- There is at most one waiting revision, so its id is not needed.
update revisions set status = :status, status_message = :reason, updated_at = now()
where deployment_id = :deployment_id and status = 'QUEUED'

-- name: interrupt_revision_in_progress
-- The same statuses as `revision_in_progress`; a waiting revision is changed by `update_waiting_revision`.
update revisions set status = 'INTERRUPTED', status_message = :reason, updated_at = now()
where deployment_id = :deployment_id
  and status in ('CREATING', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING')
