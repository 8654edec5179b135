-- name: row_counts
-- Estimates, as of the last vacuum or analyze.
select relname as name, greatest(reltuples, 0)::bigint as number
from pg_class where relkind = 'r' and relnamespace = current_schema()::regnamespace

-- name: serving_revisions
-- Also reads the database of an earlier version.
select d.id, d.name, d.active_revision_id, d.source, m.metrics ->> 'server_version' as server_version
from deployments d
left join deployment_metrics m on m.deployment_id = d.id
where d.status <> 'AWAITING_DELETE' and d.active_revision_id is not null
order by d.name, d.id
