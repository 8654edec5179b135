-- name: connect_listener
-- A restarted listener keeps its id, and with it the deployments that it holds.
insert into listeners (id, workspace_id, compute_type, compute_id, version)
values (:id, :workspace_id, :compute_type, :compute_id, :version)
on conflict (workspace_id, compute_id) do update set
    compute_type = excluded.compute_type, version = excluded.version, updated_at = now(), last_seen_at = now()
returning id

-- name: touch_listener
update listeners set last_seen_at = now() where id = :id and workspace_id = :workspace_id returning id

-- name: list_listeners
select id, compute_type, compute_id, version, last_seen_at, created_at, updated_at
from listeners where workspace_id = :workspace_id
order by created_at desc, id desc
limit :limit offset :offset

-- name: bump_generation
-- The last statement of a change: it holds back other changes of the workspace until the commit.
insert into desired_generations (workspace_id, generation) values (:workspace_id, 1)
on conflict (workspace_id) do update set generation = desired_generations.generation + 1

-- name: read_generation
select coalesce((select generation from desired_generations where workspace_id = :workspace_id), 0)

-- name: take_deployments
-- A deployment's database, folders and port live where it first ran, so the first listener to ask keeps it.
update deployments set held_by = :listener_id
where workspace_id = :workspace_id and held_by is null
  and exists (select from listeners where id = :listener_id and compute_type = 'process')

-- name: desired_state
-- One statement, and so one snapshot, of the deployments and of the revisions that matter to a listener.
select d.id, d.name, d.workspace_id, d.status, d.active_revision_id, d.custom_url, d.service_key_sealed, d.repo_url,
       d.install_command, d.build_command,
       r.id as revision_id, r.number, r.status as revision_status, r.source, r.repo_ref, r.repo_commit_sha,
       r.graph_config_path, r.secrets_sealed, r.created_at
from deployments d
left join revisions r on r.deployment_id = d.id and (
    r.id = d.active_revision_id
    or r.status in ('CREATING', 'QUEUED', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING')
)
where d.workspace_id = :workspace_id and d.held_by = :listener_id
order by d.created_at, d.id, r.number
