-- name: insert_user
-- Returns no row if the address is taken, even by a request that commits at the same moment.
insert into users (id, organization_id, email, full_name, password)
values (:id, :organization_id, :email, :full_name, :password::bytea)
on conflict (email) do nothing
returning id

-- name: holders_of_address
-- The member with an address in any case and form, and removed ones that had it: `remove_user` appends a note to it.
select u.removed_at from users u
where u.organization_id = :organization_id
  and lower(normalize(u.email, nfkc)) in (
      lower(normalize(:email::text, nfkc)), lower(normalize(:email::text, nfkc) || ' (removed ' || u.id || ')')
  )

-- name: lock_organization
-- Serializes changes of members, so that two admins cannot remove each other at the same time.
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

-- name: workspace_roles_of_member
-- With the actor's own role in each of these workspaces, if it is a user.
select m.role, w.display_name as workspace_name, a.role as actor_role
from workspace_members m
join workspaces w on w.id = m.workspace_id
left join workspace_members a on a.workspace_id = m.workspace_id and a.user_id = :actor_id::uuid
where m.user_id = :user_id and w.organization_id = :organization_id and w.deleted_at is null

-- name: count_other_admins
-- After `lock_organization`, so that the number holds until the commit.
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
-- Keeps the user's row for old bills; deletes memberships, keys and sessions.
with removed as (
    delete from organization_members where organization_id = :organization_id and user_id = :user_id returning user_id
),
out_of_workspaces as (
    delete from workspace_members m using removed where m.user_id = removed.user_id
),
without_keys as (
    update api_keys k set revoked_at = now() from removed where k.user_id = removed.user_id and k.revoked_at is null
),
logged_out as (
    delete from sessions s using removed where s.user_id = removed.user_id
),
without_authorizations as (
    delete from cli_authorizations c using removed where c.user_id = removed.user_id
),
without_links as (
    delete from sign_in_links l using removed where l.user_id = removed.user_id
)
update users u set removed_at = now(), password = null, email = u.email || ' (removed ' || u.id || ')'
from removed where u.id = removed.user_id
returning u.id

-- name: password_of_user
select u.id, u.password from users u
where u.removed_at is null and (u.email = :email::text or u.id = :id::uuid)

-- name: lock_user
-- Before `set_password`, so that this sees the sessions of sign-ins that checked the old password (`insert_session`).
select id from users where id = :id for update

-- name: set_password
-- Ends all sessions but the one that changes the password, and codes that would give new ones.
with logged_out as (
    delete from sessions where user_id = :id and id is distinct from :session_id::uuid
),
without_authorizations as (
    delete from cli_authorizations where user_id = :id
),
without_links as (
    delete from sign_in_links where user_id = :id
)
update users set password = :password where id = :id
