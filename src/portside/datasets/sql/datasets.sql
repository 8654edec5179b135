-- name: create_dataset
-- No row if the workspace has a dataset of this name or id.
insert into datasets (workspace_id, id, name, description, data_type, extra, inputs_schema, outputs_schema)
values (
    :workspace_id, :id, :name, :description, :data_type, :extra::jsonb, :inputs_schema::json, :outputs_schema::json
)
on conflict do nothing
returning id

-- name: list_datasets
-- Counts are computed for the page alone, because a workspace may have thousands of datasets, of which one has a million
-- examples. Sorting by a count computes that count for every dataset.
with page as materialized (
    select d.*, row_number() over (
        order by
            case when :descending::boolean and :sort_by::text = 'name' then d.name end desc,
            case when not :descending::boolean and :sort_by::text = 'name' then d.name end,
            case when :sort_by::text <> 'name' then (case when :descending::boolean then -1 else 1 end) * (
                case :sort_by::text
                    when 'created_at' then extract(epoch from d.created_at)
                    when 'modified_at' then extract(epoch from d.modified_at)
                    when 'last_session_start_time' then extract(epoch from s.latest)
                    when 'example_count' then e.n
                    else s.n
                end
            ) end nulls last,
            d.id
    ) as place
    from datasets d
    cross join lateral (
        select count(*) as n from examples e
        where :sort_by::text = 'example_count'
          and e.workspace_id = d.workspace_id and e.dataset_id = d.id and e.until = 'infinity'
    ) e
    cross join lateral (
        select count(*) as n, max(coalesce(p.start_time, p.created_at)) as latest from projects p
        where :sort_by::text not in ('name', 'created_at', 'modified_at', 'example_count')
          and p.workspace_id = d.workspace_id and p.reference_dataset_id = d.id and p.deleted_at is null
    ) s
    where d.workspace_id = :workspace_id
      and (:ids::uuid[] is null or d.id = any(:ids::uuid[]))
      and (:name::text is null or d.name = :name::text)
      and (:name_contains::text is null or position(lower(:name_contains::text) in lower(d.name)) > 0)
      and (:data_types::text[] is null or d.data_type = any(:data_types::text[]))
      and (:metadata::jsonb is null or d.extra -> 'metadata' @> :metadata::jsonb)
    order by place limit :limit::int offset :offset::int
)
select d.id, d.workspace_id as tenant_id, d.name, d.description, d.data_type, d.created_at, d.modified_at, d.extra,
       d.inputs_schema, d.outputs_schema, e.n as example_count, s.n as session_count,
       s.latest as last_session_start_time
from page d
cross join lateral (
    select count(*) as n from examples e
    where e.workspace_id = d.workspace_id and e.dataset_id = d.id and e.until = 'infinity'
) e
cross join lateral (
    select count(*) as n, max(coalesce(p.start_time, p.created_at)) as latest from projects p
    where p.workspace_id = d.workspace_id and p.reference_dataset_id = d.id and p.deleted_at is null
) s
order by d.place

-- name: update_dataset
-- No row if the dataset does not exist. Columns that the request does not set stay unchanged.
update datasets set
    name = coalesce(:name::text, name),
    description = case when :sets_description::boolean then :description::text else description end,
    extra = case when :sets_metadata::boolean
        then coalesce(extra, '{}'::jsonb) || jsonb_build_object('metadata', :metadata::jsonb) else extra end,
    inputs_schema = case when :sets_inputs_schema::boolean then :inputs_schema::json else inputs_schema end,
    outputs_schema = case when :sets_outputs_schema::boolean then :outputs_schema::json else outputs_schema end,
    modified_at = now()
where workspace_id = :workspace_id and id = :dataset_id
returning id

-- name: delete_dataset
delete from datasets where workspace_id = :workspace_id and id = :dataset_id

-- name: lock_dataset
-- Every change of examples locks this row, so that the versions of a dataset are made one after the other.
select name, inputs_schema, outputs_schema from datasets
where workspace_id = :workspace_id and id = :dataset_id
for update

-- name: share_dataset
-- A dataset that is shared already keeps its token.
insert into shared_datasets (share_token, workspace_id, dataset_id)
select :share_token::uuid, d.workspace_id, d.id from datasets d where d.workspace_id = :workspace_id and d.id = :dataset_id
on conflict do nothing

-- name: share_of_dataset
select share_token from shared_datasets where workspace_id = :workspace_id and dataset_id = :dataset_id

-- name: unshare_dataset
delete from shared_datasets where workspace_id = :workspace_id and dataset_id = :dataset_id

-- name: shared_dataset
-- Used without an API key: the token is the credential, and its row names the workspace.
select workspace_id, dataset_id from shared_datasets where share_token = :share_token

-- name: empty_workspace
with without_comparisons as (
    delete from comparative_experiments where workspace_id = :workspace_id
)
delete from datasets where workspace_id = :workspace_id
