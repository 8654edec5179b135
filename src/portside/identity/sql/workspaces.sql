-- name: insert_workspace
insert into workspaces (id, organization_id, display_name, tenant_handle)
values (:id, :organization_id, :display_name, :tenant_handle)
on conflict do nothing
returning id

-- name: list_workspaces
-- Those that the caller may enter: a user's own, all for admins of the organization, those that a key is for.
select w.id, w.organization_id, w.display_name, w.tenant_handle, w.created_at, m.role
from workspaces w
left join workspace_members m on m.workspace_id = w.id and m.user_id = :user_id::uuid
where w.organization_id = :organization_id and w.deleted_at is null
  and (:enters_all::boolean or m.user_id is not null or w.id = any(:only::uuid[]))
order by w.created_at, w.id

-- name: workspaces_of_organization
select id from workspaces where organization_id = :organization_id and id = any(:ids::uuid[]) and deleted_at is null

-- name: rename_workspace
-- Who manages an organization need not be a member of the workspace.
update workspaces w set display_name = :display_name
where id = :id and organization_id = :organization_id and deleted_at is null
returning id, organization_id, display_name, tenant_handle, created_at,
    (select m.role from workspace_members m where m.workspace_id = w.id and m.user_id = :user_id::uuid) as role

-- name: lock_workspace
-- For update, which whoever makes something in the workspace waits for (`refuse_deleted_workspace` in control).
select id, id = (select id from workspaces order by created_at limit 1) as is_first
from workspaces
where id = :id and organization_id = :organization_id and deleted_at is null
for update

-- name: delete_workspace
-- The name stays on old bills, the handle is free for others. Users' keys go on where else their users may enter.
with without_members as (
    delete from workspace_members where workspace_id = :id
),
without_keys as (
    update api_keys set revoked_at = now() where workspace_id = :id and user_id is null and revoked_at is null
)
update workspaces set deleted_at = now(), tenant_handle = tenant_handle || ' (deleted ' || id || ')' where id = :id

-- name: next_to_empty
select id from workspaces
where deleted_at < now() - make_interval(secs => :settled_s::float8) and emptied_at is null
order by deleted_at limit 1

-- name: tell_empty
update workspaces set emptied_at = now() where id = :id
