-- name: insert_user
insert into users (id, organization_id, email, full_name, password)
values (:id, :organization_id, :email, :full_name, :password::bytea)
on conflict (email) do nothing
returning id

-- name: lock_organization
-- Changes of members wait for each other, so that two admins cannot remove one another at once.
select id from organizations where id = :id for update

-- name: insert_organization_member
insert into organization_members (organization_id, user_id, role) values (:organization_id, :user_id, :role)

-- name: insert_workspace_members
insert into workspace_members (workspace_id, user_id, role)
select x.id, :user_id, :role from unnest(:workspace_ids::uuid[]) as x (id)
on conflict do nothing
returning workspace_id

-- name: list_organization_members
select u.id, u.email, u.full_name, m.role, m.created_at
from organization_members m join users u on u.id = m.user_id
where m.organization_id = :organization_id and (:user_id::uuid is null or m.user_id = :user_id::uuid)
order by m.created_at, u.id

-- name: list_workspace_members
select u.id, u.email, u.full_name, m.role, m.created_at
from workspace_members m join users u on u.id = m.user_id
where m.workspace_id = :workspace_id and (:user_id::uuid is null or m.user_id = :user_id::uuid)
order by m.created_at, u.id

-- name: count_other_admins
select count(*) from organization_members
where organization_id = :organization_id and role = :role and user_id <> :user_id

-- name: set_organization_role
update organization_members set role = :role
where organization_id = :organization_id and user_id = :user_id returning user_id

-- name: set_workspace_role
update workspace_members set role = :role
where workspace_id = :workspace_id and user_id = :user_id returning user_id

-- name: remove_workspace_member
delete from workspace_members where workspace_id = :workspace_id and user_id = :user_id returning user_id

-- name: remove_user
-- The user's name stays on old bills; what it could enter with does not.
with gone as (
    delete from organization_members where organization_id = :organization_id and user_id = :user_id returning user_id
),
out_of_workspaces as (
    delete from workspace_members m using gone where m.user_id = gone.user_id
),
without_keys as (
    update api_keys k set revoked_at = now() from gone where k.user_id = gone.user_id and k.revoked_at is null
),
logged_out as (
    delete from logins l using gone where l.user_id = gone.user_id
)
update users u set removed_at = now(), password = null, email = u.email || ' (removed ' || u.id || ')'
from gone where u.id = gone.user_id
returning u.id

-- name: password_of_user
select u.id, u.password from users u
where u.removed_at is null and (u.email = :email::text or u.id = :id::uuid)

-- name: set_password
-- Whoever logged in with the old one is logged out; the login that asks stays.
with logged_out as (
    delete from logins where user_id = :id and id <> :login_id
)
update users set password = :password where id = :id

-- name: insert_login
insert into logins (id, user_id, token_hash, expires_at) values (:id, :user_id, :token_hash, :expires_at)

-- name: login_by_hash
select l.id, l.token_hash, l.expires_at, u.id as user_id, u.email, u.organization_id, o.role as organization_role,
       w.id as workspace_id, w.display_name as workspace_name, w.tenant_handle, m.role as workspace_role
from logins l
join users u on u.id = l.user_id
join organization_members o on o.organization_id = u.organization_id and o.user_id = u.id
left join workspaces w on w.id = :tenant::uuid and w.organization_id = u.organization_id and w.deleted_at is null
left join workspace_members m on m.workspace_id = w.id and m.user_id = u.id
where l.token_hash = :token_hash and l.expires_at > now()

-- name: delete_login
delete from logins where id = :id

-- name: forget_old_logins
delete from logins where expires_at < now()
