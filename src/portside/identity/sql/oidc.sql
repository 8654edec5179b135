-- name: user_of_subject
-- Also a member that was removed, who must not come back as a new one.
select u.id, u.removed_at from oidc_subjects o join users u on u.id = o.user_id
where o.issuer = :issuer and o.subject = :subject

-- name: users_of_email
-- Providers do not keep the case of an e-mail; ours are stored as they were given.
select u.id, exists (select from oidc_subjects o where o.user_id = u.id and o.issuer = :issuer) as is_linked
from users u
where u.organization_id = :organization_id and u.removed_at is null and lower(u.email) = lower(:email)

-- name: link_subject
-- A member that was removed and added again has a new row, and so the link changes.
insert into oidc_subjects (issuer, subject, user_id) values (:issuer, :subject, :user_id)
on conflict (issuer, subject) do update set user_id = excluded.user_id

-- name: end_credentials
-- Ends everything that signs in as a member, or acts for it, without the provider. Not for an admin, who gains nothing.
with distrusted as (
    select u.id from users u join organization_members m on m.user_id = u.id
    where u.id = :user_id and m.role <> :admin_role
),
logged_out as (
    delete from sessions s using distrusted d where s.user_id = d.id
),
without_authorizations as (
    delete from cli_authorizations c using distrusted d where c.user_id = d.id
),
without_links as (
    delete from sign_in_links l using distrusted d where l.user_id = d.id
),
without_keys as (
    update api_keys k set revoked_at = now() from distrusted d where k.user_id = d.id and k.revoked_at is null
)
update users u set password = null from distrusted d where u.id = d.id

-- name: workspaces_of_handles
select id, tenant_handle from workspaces
where organization_id = :organization_id and tenant_handle = any(:handles::text[]) and deleted_at is null

-- name: grant_workspace_role
-- The role of the groups replaces one that an admin gave.
insert into workspace_members (workspace_id, user_id, role) values (:workspace_id, :user_id, :role)
on conflict (workspace_id, user_id) do update set role = excluded.role

-- name: leave_workspaces
delete from workspace_members where user_id = :user_id and workspace_id = any(:workspace_ids::uuid[])
