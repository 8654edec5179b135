-- name: deployments_of_workspace
-- Enough names for an error message.
select name from deployments where workspace_id = :workspace_id order by name limit 10

-- name: empty_workspace
-- What is left of a workspace without deployments.
with without_integrations as (
    delete from integrations where workspace_id = :workspace_id
),
without_generation as (
    delete from desired_generations where workspace_id = :workspace_id
)
delete from listeners where workspace_id = :workspace_id
