-- name: server_facts
-- Connections that Postgres reserves for superusers do not count as free ones of another role.
select current_setting('server_version_num')::int / 10000 as version,
       current_setting('fsync') = 'on' as syncs,
       current_setting('full_page_writes') = 'on' as writes_full_pages,
       current_setting('autovacuum') = 'on' as vacuums,
       current_setting('synchronous_commit') <> 'off' as commits_synchronously,
       current_setting('default_transaction_read_only') = 'on' or pg_is_in_recovery() as is_read_only,
       pg_encoding_to_char(d.encoding) as encoding,
       current_setting('max_connections')::int as max_connections,
       (select count(*)::int from pg_stat_activity where backend_type = 'client backend') as connections,
       r.rolsuper or r.rolcreatedb as may_create_databases,
       r.rolsuper or r.rolcreaterole as may_create_roles,
       extract(epoch from clock_timestamp())::float8 as now
from pg_roles r, pg_database d
where r.rolname = current_user and d.datname = current_database()

-- name: has_master_key_check
-- Without a value to decrypt, a key that belongs to another platform cannot be told from the right one.
select exists (select from master_key_check)

-- name: last_seen_listener
-- Of the platform's own machine; null if none has ever connected.
select extract(epoch from now() - max(last_seen_at))::float8 from listeners where compute_type = 'process'

-- name: troubled_deployments
-- Deployments that do not serve, or of which their listener names a problem, and those whose newest revision has failed;
-- the serving one may be an earlier revision.
select d.name, d.status, coalesce(d.status_message, r.status_message) as reason, r.status as revision_status
from deployments d
left join revisions r on r.id = d.latest_revision_id
where d.status = 'UNKNOWN' or r.status like '%FAILED' or r.status = 'UNKNOWN'
   or (d.status = 'READY' and d.status_message is not null)
order by d.name

-- name: states_of_deployments
-- For the support bundle, which hides the secrets in messages.
select d.id, d.name, d.status, d.status_message, d.source, d.created_at, r.status as revision_status,
       r.status_message as revision_message, r.created_at as revision_created_at,
       (select count(*)::int from revisions v where v.deployment_id = d.id) as revisions
from deployments d
left join revisions r on r.id = d.latest_revision_id
order by d.name
