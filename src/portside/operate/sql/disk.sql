-- name: databases_size
-- Databases that this role may not connect to cannot be measured, and are left out.
select coalesce(sum(pg_database_size(oid)), 0)::bigint
from pg_database where has_database_privilege(oid, 'connect')

-- name: databases_by_size
-- All of the server, because templates and databases of other programs take space too. One that is dropped meanwhile has
-- no size, and is left out.
select d.name, d.bytes, d.is_own
from (
    select datname as name, pg_database_size(oid) as bytes, datname = current_database() as is_own
    from pg_database where has_database_privilege(oid, 'connect')
    offset 0
) d
where d.bytes is not null
order by d.bytes desc, d.name

-- name: table_sizes
-- With indexes and out-of-line values. Rows that were deleted or replaced take space until autovacuum frees it. A table
-- that is dropped meanwhile has no size, and takes no space.
select n.nspname as schema, c.relname as name, coalesce(pg_total_relation_size(c.oid), 0) as bytes,
       coalesce(s.n_live_tup, 0) as live_rows, coalesce(s.n_dead_tup, 0) as dead_rows
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_stat_user_tables s on s.relid = c.oid
where c.relkind in ('r', 'm') and n.nspname not in ('pg_catalog', 'information_schema')
  and n.nspname not like 'pg\_%'

-- name: names_of_deployments
select id, name from deployments
