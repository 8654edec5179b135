-- Statements that create or drop a role or database take no parameters. So these queries only return the text of such
-- a statement, in which Postgres has quoted names and literals, and the caller then runs that text.

-- name: lock_budget
-- Held from the check of the budget to the creation of the role, so that two deployments do not both get the last
-- connections.
select pg_advisory_lock(:lock::bigint);

-- name: read_budget
-- A superuser has the connections that Postgres reserves; any other role shares those of the deployments. The view of
-- connections is read once: it is a function without statistics, which a join would call for each of hundreds of roles.
with held as materialized (
    select usesysid as role, count(*)::int as connections from pg_stat_activity group by usesysid
)
select (
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
    - coalesce(current_setting('reserved_connections', true)::int, 0)
    - case when (select rolsuper from pg_roles where rolname = current_user) then 0 else :platform::int end
) as available,
others.number, others.taken,
coalesce((select held.connections from held join pg_roles as r on r.oid = held.role where r.rolname = :name::text), 0)
as held,
exists (select from pg_roles where rolname = :name::text) as is_there,
exists (select from pg_database where datname = :name::text) as has_database
from (
    -- Each of the other deployments counts with its share, or with what all its replicas hold now if that is more. Those
    -- that sleep have no share.
    select
        count(*) filter (where not is_asleep)::int as number,
        coalesce(sum(greatest(case when is_asleep then 0 else :share::int end, held.connections)), 0)::int as taken
    from pg_roles as r
    cross join lateral (select r.rolname::text = any(:asleep::text[]) as is_asleep) as sleep
    left join held on held.role = r.oid
    where r.rolname ~ '^agent_[0-9a-f]{32}$' and r.rolname <> :name::text
) as others;

-- name: list_databases
-- Asked once for all deployments that a listener looks up at its start.
select datname::text from pg_database;

-- name: write_role
-- An existing role gets the password again, because the password file is authoritative.
select format(
    case when exists (select from pg_roles where rolname = :name::text)
    then 'alter role %I login connection limit %s password %L'
    else 'create role %I login connection limit %s password %L' end,
    :name::text, :connections::int, :verifier::text);

-- name: write_membership
-- A role may create a database for another owner only if it is a member of that owner; a superuser always may.
select format('grant %I to current_user', :name::text)
where not (select rolsuper from pg_roles where rolname = current_user);

-- name: write_database
select format('create database %I owner %I', :name::text, :name::text)
where not exists (select from pg_database where datname = :name::text);

-- name: write_owner
-- A database that an operator created by hand may belong to another role.
select format('alter database %I owner to %I', :name::text, :name::text)
where exists (
    select from pg_database as d join pg_roles as r on r.oid = d.datdba
    where d.datname = :name::text and r.rolname <> :name::text
);

-- name: write_privacy
-- By default every role may connect to a new database. The owner keeps the right.
select format('revoke all on database %I from public', :name::text);

-- name: offer_vectors
-- For the semantic search of an agent's store; runs in the deployment's own database. Only a superuser may create this
-- extension, so every database gets it. When it is not installed, or the role is not a superuser, an agent that needs
-- it reports that at its start.
do $$ begin
    if exists (select from pg_available_extensions where name = 'vector') then
        create extension if not exists vector schema public;
    end if;
exception when insufficient_privilege then null;
end $$

-- name: next_due
-- Runs in the deployment's own database. The agent server's package has the function.
select extract(epoch from portside.next_due_at())::float8;

-- name: write_drop_database
select format('drop database if exists %I with (force)', :name::text);

-- name: write_drop_role
select format('drop role if exists %I', :name::text);
