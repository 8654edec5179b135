-- name: set_scale
-- Null removes a limit, so that the revision's own limit applies again.
update deployments set
    min_scale = :min_scale, max_scale = :max_scale,
    queue_min_scale = :queue_min_scale, queue_max_scale = :queue_max_scale,
    updated_at = now()
where id = :id

-- name: get_scale
select min_scale, max_scale, queue_min_scale, queue_max_scale
from deployments
where id = :id and workspace_id = :workspace_id
