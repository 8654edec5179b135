-- name: put_metrics
-- Inserts nothing for an unknown deployment or one of another workspace.
insert into deployment_metrics (deployment_id, measured_at, metrics)
select id, now(), :metrics from deployments where id = :id and workspace_id = :workspace_id
on conflict (deployment_id) do update set measured_at = excluded.measured_at, metrics = excluded.metrics
returning deployment_id

-- name: get_metrics
-- A deployment without metrics has a row of nulls; no row means that there is no such deployment.
select m.measured_at, m.metrics
from deployments d
left join deployment_metrics m on m.deployment_id = d.id
where d.id = :id and d.workspace_id = :workspace_id
