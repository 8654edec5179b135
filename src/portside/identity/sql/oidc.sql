-- name: user_of_subject
select u.id, u.removed_at from oidc_subjects o join users u on u.id = o.user_id
where o.issuer = :issuer and o.subject = :subject

-- name: users_of_email
-- Providers do not keep the case of an e-mail; ours are stored as they were given.
select u.id, exists (select from oidc_subjects o where o.user_id = u.id and o.issuer = :issuer) as is_linked
from users u
where u.organization_id = :organization_id and u.removed_at is null and lower(u.email) = lower(:email)

-- name: link_subject
insert into oidc_subjects (issuer, subject, user_id) values (:issuer, :subject, :user_id)
on conflict (issuer, subject) do update set user_id = excluded.user_id

-- name: workspaces_of_handles
select id, tenant_handle from workspaces
where organization_id = :organization_id and tenant_handle = any(:handles::text[]) and deleted_at is null

-- name: grant_workspace_role
insert into workspace_members (workspace_id, user_id, role) values (:workspace_id, :user_id, :role)
on conflict (workspace_id, user_id) do update set role = excluded.role

-- name: leave_workspaces
delete from workspace_members where user_id = :user_id and workspace_id = any(:workspace_ids::uuid[])
