-- name: put_metrics
-- A deployment that is gone, or another workspace's, takes none.
insert into deployment_metrics (deployment_id, measured_at, measures)
select id, now(), :measures from deployments where id = :id and workspace_id = :workspace_id
on conflict (deployment_id) do update set measured_at = excluded.measured_at, measures = excluded.measures
returning deployment_id

-- name: get_metrics
select m.measured_at, m.measures
from deployments d
left join deployment_metrics m on m.deployment_id = d.id
where d.id = :id and d.workspace_id = :workspace_id
