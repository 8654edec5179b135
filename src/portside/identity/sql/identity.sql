-- name: first_workspace
select id, organization_id from workspaces order by created_at limit 1

-- name: insert_organization
insert into organizations (id, display_name) values (:id, :display_name)

-- name: insert_workspace
insert into workspaces (id, organization_id, display_name, tenant_handle)
values (:id, :organization_id, :display_name, :tenant_handle)

-- name: insert_user
insert into users (id, organization_id, email) values (:id, :organization_id, :email)

-- name: lock_first_start
-- Two programs that start on an empty database at once must make one organization between them.
select pg_advisory_xact_lock(hashtext('portside first start'))

-- name: insert_key
insert into api_keys
    (id, organization_id, workspace_id, user_id, description, short_key, key_hash, permissions, expires_at)
values
    (:id, :organization_id, :workspace_id, :user_id, :description, :short_key, :key_hash, :permissions, :expires_at)
returning id, short_key, description, permissions, created_at, last_used_at, expires_at

-- name: key_by_hash
-- The whole identity behind a key in one trip; a revoked or expired key is as good as none.
select k.id, k.key_hash, k.short_key, k.organization_id, k.workspace_id, k.user_id, k.permissions, k.expires_at,
       u.email, w.display_name as workspace_name, w.tenant_handle
from api_keys k
join workspaces w on w.id = k.workspace_id
left join users u on u.id = k.user_id
where k.key_hash = :key_hash and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())

-- name: touch_key
-- At most one write a minute and key: the time is for people, not for decisions.
update api_keys set last_used_at = now()
where id = :id and (last_used_at is null or last_used_at < now() - interval '1 minute')

-- name: list_keys
select id, short_key, description, permissions, created_at, last_used_at, expires_at
from api_keys
where workspace_id = :workspace_id and revoked_at is null
order by created_at desc

-- name: revoke_key
update api_keys set revoked_at = now()
where id = :id and workspace_id = :workspace_id and revoked_at is null
returning id

-- name: list_workspaces
select id, organization_id, display_name, tenant_handle, created_at
from workspaces where organization_id = :organization_id order by created_at
