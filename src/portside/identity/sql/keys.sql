-- name: insert_key
-- Background tasks of the platform act without a key: what they create is created by nobody.
insert into api_keys
    (id, organization_id, workspace_id, workspaces, user_id, description, short_key, key_hash, permissions, read_only,
     expires_at, used_by, created_by_user, created_by_key)
values
    (:id, :organization_id, :workspace_id, :workspaces::uuid[], :user_id, :description, :short_key, :key_hash,
     :permissions, :read_only, :expires_at, :used_by, :created_by_user,
     (select c.id from api_keys c where c.id = :created_by_key::uuid))

-- name: key_by_hash
-- The whole identity of a key in one query; revoked and expired keys are not found. Without a tenant the workspace is
-- the key's own. With one, `authentication.py` checks that the key may use it: its own workspace, one of its
-- organization that it is not excluded from, or one of its user's.
select k.id, k.key_hash, k.short_key, k.organization_id, k.user_id, k.permissions, k.expires_at, k.workspaces,
       k.workspace_id as own_workspace_id, u.email, o.role as organization_role, w.id as workspace_id,
       w.display_name as workspace_name, w.tenant_handle, m.role as workspace_role
from api_keys k
left join users u on u.id = k.user_id
left join organization_members o on o.organization_id = k.organization_id and o.user_id = k.user_id
left join workspaces w
    on w.id = coalesce(:tenant::uuid, k.workspace_id) and w.organization_id = k.organization_id and w.deleted_at is null
left join workspace_members m on m.workspace_id = w.id and m.user_id = k.user_id
where k.key_hash = :key_hash and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
  and (k.user_id is null or o.user_id is not null)

-- name: is_valid_key
select exists(
    select from api_keys
    where key_hash = :key_hash and revoked_at is null and (expires_at is null or expires_at > now())
)

-- name: touch_key
-- At most one write per minute and key: the time is only shown to people.
update api_keys set last_used_at = now()
where id = :id and (last_used_at is null or last_used_at < now() - interval '1 minute')

-- name: list_keys
-- The keys of a workspace, of a user, or of the organization, depending on the given ids.
select k.id, k.short_key, k.description, k.permissions, k.read_only, k.created_at, k.last_used_at, k.expires_at, k.used_by,
       coalesce(c.email, m.short_key) as created_by,
       case when k.user_id is not null then k.workspace_id end as default_workspace_id,
       case when k.user_id is not null then d.display_name end as default_workspace_name,
       array(
           select w.display_name from workspaces w
           where k.user_id is null and (w.id = k.workspace_id or w.id = any(k.workspaces))
           order by w.display_name
       ) as workspace_names
from api_keys k
left join workspaces d on d.id = k.workspace_id
left join users c on c.id = k.created_by_user
left join api_keys m on m.id = k.created_by_key
where k.organization_id = :organization_id and k.revoked_at is null
  and (:id::uuid is null or k.id = :id::uuid)
  and (:user_id::uuid is null or k.user_id = :user_id::uuid)
  and (:workspace_id::uuid is null or (k.workspace_id = :workspace_id::uuid))
  and (not :service_keys_only::boolean or k.user_id is null)
order by k.created_at desc, k.id desc

-- name: expire_key
-- Never later than the key would expire anyway.
update api_keys set expires_at = least(expires_at, now() + :after) where id = :id

-- name: revoke_key
-- A key that a part of the platform uses is revoked only with :force.
update api_keys set revoked_at = now()
where id = :id and organization_id = :organization_id and revoked_at is null
  and (:user_id::uuid is null or user_id = :user_id::uuid)
  and (:workspace_id::uuid is null or workspace_id = :workspace_id::uuid)
  and (not :service_keys_only::boolean or user_id is null)
  and (used_by is null or :force::boolean)
returning id
