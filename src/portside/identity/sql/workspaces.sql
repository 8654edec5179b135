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
where w.organization_id = :organization_id
  and (:enters_all::boolean or m.user_id is not null or w.id = any(:only::uuid[]))
order by w.created_at, w.id

-- name: workspaces_of_organization
select id from workspaces where organization_id = :organization_id and id = any(:ids::uuid[])

-- name: rename_workspace
-- Who manages an organization need not be a member of the workspace.
update workspaces w set display_name = :display_name
where id = :id and organization_id = :organization_id
returning id, organization_id, display_name, tenant_handle, created_at,
    (select m.role from workspace_members m where m.workspace_id = w.id and m.user_id = :user_id::uuid) as role
