-- name: connect_listener
-- A restarted listener keeps its id and its deployments. Returns no row if the compute id belongs to a listener of
-- another compute type.
insert into listeners (id, workspace_id, compute_type, compute_id, version, key_id, size_limits, last_seen_at)
values (:id, :workspace_id, :compute_type, :compute_id, :version, :key_id, :size_limits, now())
on conflict (workspace_id, compute_id) do update set
    version = excluded.version, key_id = excluded.key_id, size_limits = excluded.size_limits, updated_at = now(),
    last_seen_at = now()
where listeners.compute_type = excluded.compute_type
returning id

-- name: insert_listener
-- Returns no row if the compute id is taken.
insert into listeners (id, workspace_id, compute_type, compute_id, compute_config, version)
values (:id, :workspace_id, :compute_type, :compute_id, :compute_config, :version)
on conflict (workspace_id, compute_id) do nothing
returning id

-- name: update_listener
-- Null keeps a value.
update listeners set
    version = coalesce(:version, version),
    compute_config = coalesce(:compute_config, compute_config),
    updated_at = now()
where id = :id and workspace_id = :workspace_id
returning id

-- name: lock_listener_for_use
-- Prevents the delete of a listener while a deployment that names it is created.
select id from listeners where id = :id and workspace_id = :workspace_id for key share

-- name: lock_listener
-- Prevents new deployments on a listener that is about to be deleted.
select id from listeners where id = :id and workspace_id = :workspace_id for update

-- name: is_listener_used
select exists (select from deployments where assigned_listener_id = :id or listener_id = :id)

-- name: delete_listener
delete from listeners where id = :id

-- name: touch_listener
-- The key is the one with which the listener polled last; its deployments' status says if the platform refuses it.
update listeners set last_seen_at = now(), key_id = :key_id where id = :id and workspace_id = :workspace_id returning id

-- name: find_listeners
-- One listener by its id, or a page of all, or of those of a compute type.
select id, compute_type, compute_id, compute_config, version, size_limits, last_seen_at, created_at, updated_at
from listeners
where workspace_id = :workspace_id
  and (:id::uuid is null or id = :id)
  and (:compute_type::text is null or compute_type = :compute_type)
order by created_at desc, id desc
limit :limit offset :offset

-- name: bump_generation
-- The last statement of a change: this row's lock blocks other changes of the workspace until the commit.
insert into desired_generations (workspace_id, generation) values (:workspace_id, 1)
on conflict (workspace_id) do update set generation = desired_generations.generation + 1

-- name: read_generation
select coalesce((select generation from desired_generations where workspace_id = :workspace_id), 0)

-- name: take_deployments
-- A deployment's database, folders and port are where it first ran, so the first listener to poll keeps it.
update deployments set assigned_listener_id = :listener_id
where workspace_id = :workspace_id and assigned_listener_id is null
  and exists (select from listeners where id = :listener_id and compute_type = 'process')

-- name: desired_state
-- One statement, so one snapshot, of the deployments and their active and unfinished revisions.
select d.id, d.name, d.workspace_id, d.status, d.active_revision_id, d.deployment_type,
       coalesce(d.requested_url, d.direct_url) as custom_url, d.k8s_namespace, d.service_key_sealed, d.repo_url,
       d.min_scale, d.max_scale, d.queue_min_scale, d.queue_max_scale, d.roll_forward, d.sleep_after_s, d.pin_threads,
       r.id as revision_id, r.number, r.status as revision_status, r.source, r.repo_ref, r.repo_commit_sha,
       r.graph_config_path, r.source_tarball_path, r.image_uri, r.install_command, r.build_command, r.resource_spec,
       r.secret_references, r.built_from, r.secrets_sealed, r.ignored_secrets, r.created_at,
       i.id as integration_id, i.kind, i.base_url, i.token_sealed
from deployments d
left join integrations i on i.id = d.integration_id
left join revisions r on r.deployment_id = d.id and (
    r.id = d.active_revision_id
    or r.status in ('CREATING', 'QUEUED', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING')
)
where d.workspace_id = :workspace_id and d.assigned_listener_id = :listener_id
order by d.created_at, d.id, r.number

-- name: desired_revision
-- Any revision of a deployment, also one that was replaced, with the same columns as desired_state.
select d.deployment_type, d.repo_url,
       r.id as revision_id, r.number, r.status as revision_status, r.source, r.repo_ref, r.repo_commit_sha,
       r.graph_config_path, r.source_tarball_path, r.image_uri, r.install_command, r.build_command, r.resource_spec,
       r.secret_references, r.built_from, r.secrets_sealed, r.ignored_secrets, r.created_at,
       i.id as integration_id, i.kind, i.base_url, i.token_sealed
from revisions r
join deployments d on d.id = r.deployment_id
left join integrations i on i.id = d.integration_id
where r.id = :id and r.deployment_id = :deployment_id and d.workspace_id = :workspace_id
