-- name: insert_revision
-- The caller holds the deployment's lock, so that no other insert takes the same number.
insert into revisions (id, deployment_id, number, status, source, repo_ref, graph_config_path, secrets_sealed)
select :id, :deployment_id, coalesce(max(number), 0) + 1, :status, :source, :repo_ref, :graph_config_path,
       :secrets_sealed
from revisions where deployment_id = :deployment_id

-- name: revision_at_work
-- The one that neither waits nor is at its end.
select id from revisions
where deployment_id = :deployment_id
  and status in ('CREATING', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING')

-- name: get_revision
select r.id, r.status, r.status_message, r.source, r.repo_ref, r.graph_config_path, r.repo_commit_sha,
       r.secrets_sealed, r.created_at, r.updated_at
from revisions r
join deployments d on d.id = r.deployment_id
where r.id = :id and r.deployment_id = :deployment_id and d.workspace_id = :workspace_id

-- name: list_revisions
select id, status, status_message, source, repo_ref, graph_config_path, repo_commit_sha, created_at, updated_at
from revisions
where deployment_id = :deployment_id and (:statuses::text[] is null or status = any(:statuses))
order by number desc
limit :limit offset :offset

-- name: deployment_exists
select true from deployments where id = :id and workspace_id = :workspace_id

-- name: report_revision
-- A report of the state it is in already may still bring the commit.
update revisions set
    status = :status,
    status_message = coalesce(:reason, status_message),
    repo_commit_sha = coalesce(:repo_commit_sha, repo_commit_sha),
    updated_at = now()
where id = :id

-- name: move_waiting_revision
update revisions set status = :status, status_message = :reason, updated_at = now()
where deployment_id = :deployment_id and status = 'QUEUED'

-- name: interrupt_revision_at_work
update revisions set status = 'INTERRUPTED', status_message = :reason, updated_at = now()
where deployment_id = :deployment_id
  and status in ('CREATING', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING')
