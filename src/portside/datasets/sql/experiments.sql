-- name: runs_of_examples
-- Root runs of experiments, by the example that they ran on. Conditions replace `true`.
select r.id, r.reference_example_id
from readable_runs r
where r.workspace_id = :workspace_id and r.reference_example_id = any(:examples::uuid[]) and true
order by r.start_time, r.id

-- name: examples_of_experiments
-- In the order of their ids, from a cursor on. Conditions replace `true`.
select distinct r.reference_example_id as id
from readable_runs r
where r.workspace_id = :workspace_id and r.reference_example_id is not null
  and (:after::uuid is null or r.reference_example_id > :after::uuid)
  and (:only::uuid[] is null or r.reference_example_id = any(:only::uuid[])) and true
order by 1 limit :limit::int

-- name: when_of_experiment
select from readable_runs r where r.session_id = :session_id::uuid

-- name: sessions_of_dataset
-- The projects that are experiments on the dataset.
select id from projects
where workspace_id = :workspace_id and reference_dataset_id = :dataset_id and deleted_at is null
  and id = any(:ids::uuid[])

-- name: create_comparison
insert into comparative_experiments (
    workspace_id, id, dataset_id, name, description, extra, experiment_ids, created_at
)
values (
    :workspace_id, :id, :dataset_id, :name, :description, :extra::jsonb, :experiment_ids::uuid[],
    coalesce(:created_at::timestamptz, now())
)
on conflict do nothing
returning id

-- name: list_comparisons
select c.id, c.workspace_id as tenant_id, c.dataset_id as reference_dataset_id, c.name, c.description, c.extra,
       c.created_at, c.modified_at, i.info as experiments_info
from comparative_experiments c
cross join lateral (
    select coalesce(jsonb_agg(jsonb_build_object('id', p.id, 'name', p.name) order by x.ordinal), '[]'::jsonb) as info
    from unnest(c.experiment_ids) with ordinality x (id, ordinal)
    join projects p on p.workspace_id = c.workspace_id and p.id = x.id and p.deleted_at is null
) i
where c.workspace_id = :workspace_id and c.dataset_id = :dataset_id
  and (:ids::uuid[] is null or c.id = any(:ids::uuid[]))
  and (:name::text is null or c.name = :name::text)
  and (:name_contains::text is null or position(lower(:name_contains::text) in lower(c.name)) > 0)
order by c.created_at desc, c.id
limit :limit::int offset :offset::int

-- name: delete_comparison
delete from comparative_experiments where workspace_id = :workspace_id and id = :comparison_id
