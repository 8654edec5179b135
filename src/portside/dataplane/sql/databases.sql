-- Statements that make or drop a role or database take no parameters, so these queries only write them:
-- Postgres itself quotes the names and literals, and the caller runs the text it gets back.

-- name: write_role
-- A role that exists gets the password anew: the file that holds it is the truth.
select format(
    case when exists (select from pg_roles where rolname = :name::text) then 'alter role %I login password %L'
    else 'create role %I login password %L' end, :name::text, :verifier::text);

-- name: write_membership
-- Only who can become a role may make a database that it owns; a superuser can become anyone.
select format('grant %I to current_user', :name::text)
where not (select rolsuper from pg_roles where rolname = current_user);

-- name: write_database
select format('create database %I owner %I', :name::text, :name::text)
where not exists (select from pg_database where datname = :name::text);

-- name: write_privacy
-- Every role may connect to a new database until this is revoked; the owner still may.
select format('revoke all on database %I from public', :name::text);

-- name: offer_vectors
-- Run in the deployment's own database, for the semantic search of its agent's store. Only a superuser may make this
-- extension, so it is made for all; where it is not there, or the admin is none, an agent that wants it says so at start.
do $$ begin
    if exists (select from pg_available_extensions where name = 'vector') then
        create extension if not exists vector schema public;
    end if;
exception when insufficient_privilege then null;
end $$

-- name: write_drop_database
select format('drop database if exists %I with (force)', :name::text);

-- name: write_drop_role
select format('drop role if exists %I', :name::text);
