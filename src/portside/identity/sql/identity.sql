-- name: first_workspace
-- The platform's own listener and its service keys belong to it.
select id, organization_id from workspaces order by created_at limit 1

-- name: insert_organization
insert into organizations (id, display_name) values (:id, :display_name)

-- name: get_organization
select id, display_name, created_at from organizations where id = :id

-- name: rename_organization
update organizations set display_name = :display_name where id = :id returning id, display_name, created_at

-- name: lock_first_start
-- Two programs that start on an empty database at the same time must create one organization.
select pg_advisory_xact_lock(hashtext('portside first start'))
