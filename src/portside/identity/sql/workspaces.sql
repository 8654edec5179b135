-- name: insert_workspace
-- Returns no row if the id or the handle is taken.
insert into workspaces (id, organization_id, display_name, tenant_handle)
values (:id, :organization_id, :display_name, :tenant_handle)
on conflict do nothing
returning id

-- name: list_workspaces
-- The workspaces that the caller may use: a user's own, all for organization admins, those of a key.
select w.id, w.organization_id, w.display_name, w.tenant_handle, w.created_at, m.role
from workspaces w
left join workspace_members m on m.workspace_id = w.id and m.user_id = :user_id::uuid
where w.organization_id = :organization_id and w.deleted_at is null
  and (:may_use_all::boolean or m.user_id is not null or w.id = any(:only::uuid[]))
order by w.created_at, w.id

-- name: workspaces_of_organization
select id from workspaces where organization_id = :organization_id and id = any(:ids::uuid[]) and deleted_at is null

-- name: rename_workspace
-- The caller manages the organization and may have no role in the workspace.
update workspaces w set display_name = :display_name
where id = :id and organization_id = :organization_id and deleted_at is null
returning id, organization_id, display_name, tenant_handle, created_at,
    (select m.role from workspace_members m where m.workspace_id = w.id and m.user_id = :user_id::uuid) as role

-- name: lock_workspace
-- For update: inserts into the workspace wait for this lock (`refuse_deleted_workspace` in control).
select id, id = (select id from workspaces order by created_at limit 1) as is_first
from workspaces
where id = :id and organization_id = :organization_id and deleted_at is null
for update

-- name: delete_workspace
-- Keeps the name for old bills and frees the handle. Users' keys still work in their other workspaces.
with without_members as (
    delete from workspace_members where workspace_id = :id
),
without_keys as (
    update api_keys set revoked_at = now() where workspace_id = :id and user_id is null and revoked_at is null
)
update workspaces set deleted_at = now(), tenant_handle = tenant_handle || ' (deleted ' || id || ')' where id = :id

-- name: next_to_empty
-- One at a time, the oldest first. `mark_emptied` ends it.
select id from workspaces
where deleted_at < now() - make_interval(secs => :deleted_for_s::float8) and emptied_at is null
order by deleted_at limit 1

-- name: mark_emptied
update workspaces set emptied_at = now() where id = :id
