-- name: create_config
-- A configuration that exists stays; the caller compares the two.
insert into feedback_configs (workspace_id, feedback_key, feedback_config, is_lower_score_better)
values (:workspace_id, :feedback_key, :feedback_config, :is_lower_score_better)
on conflict do nothing

-- name: list_configs
select feedback_key, feedback_config, workspace_id as tenant_id, modified_at, is_lower_score_better
from feedback_configs
where workspace_id = :workspace_id
  and (:keys::text[] is null or feedback_key = any(:keys::text[]))
  and (:name_contains::text is null or position(lower(:name_contains::text) in lower(feedback_key)) > 0)
order by feedback_key
limit :limit::int offset :offset::int

-- name: update_config
-- Null leaves a column unchanged.
update feedback_configs set
    feedback_config = coalesce(:feedback_config::jsonb, feedback_config),
    is_lower_score_better = coalesce(:is_lower_score_better::boolean, is_lower_score_better),
    modified_at = now()
where workspace_id = :workspace_id and feedback_key = :feedback_key
returning feedback_key

-- name: delete_config
delete from feedback_configs where workspace_id = :workspace_id and feedback_key = :feedback_key returning feedback_key

-- name: empty_workspace
with without_queues as (
    delete from annotation_queues where workspace_id = :workspace_id
)
delete from feedback_configs where workspace_id = :workspace_id
