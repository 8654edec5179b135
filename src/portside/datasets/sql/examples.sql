-- name: recent_examples
-- Conditions replace `true`. An index has this order, so a page needs no sort.
select x.id from examples x where true order by x.since desc, x.position, x.id limit :limit::int offset :offset::int

-- name: ordered_examples
select x.id
from examples x
where true
order by
    case when :order_by::text = 'recently_created' then x.created_at end desc,
    case :order_by::text when 'random' then md5(x.id::text || :seed::text) when 'id' then x.id::text end,
    x.position, x.id
limit :limit::int offset :offset::int

-- name: examples_by_id
select x.id, x.dataset_id, d.name as dataset_name, x.created_at, x.since as modified_at,
       case when 'inputs' = any(:fields::text[]) then x.inputs end as inputs,
       case when 'outputs' = any(:fields::text[]) then x.outputs end as outputs,
       case when 'inputs_preview' = any(:fields::text[]) then left(x.inputs::text, 250) end as inputs_preview,
       case when 'outputs_preview' = any(:fields::text[]) then left(x.outputs::text, 250) end as outputs_preview,
       x.metadata, x.source_run_id, x.attachments
from examples x
join datasets d on d.workspace_id = x.workspace_id and d.id = x.dataset_id
where x.workspace_id = :workspace_id and x.id = any(:ids::uuid[])
  and case when :as_of::timestamptz is null then x.until = 'infinity'
           else x.since <= :as_of::timestamptz and x.until > :as_of::timestamptz end

-- name: dataset_of_example
-- The dataset that the example is in, or was in before its deletion.
select dataset_id from examples where workspace_id = :workspace_id and id = :example_id order by since desc limit 1

-- name: examples_to_change
-- Only the current version of an example can be changed: earlier ones end before `infinity`.
select id, created_at, position, inputs, outputs, metadata, source_run_id, attachments
from examples
where workspace_id = :workspace_id and dataset_id = :dataset_id and id = any(:ids::uuid[]) and until = 'infinity'

-- name: examples_in_datasets
-- The datasets that the examples are in, or were in.
select distinct dataset_id, id from examples
where workspace_id = :workspace_id and id = any(:ids::uuid[])
order by dataset_id

-- name: datasets_of_present_examples
select id, dataset_id from examples
where workspace_id = :workspace_id and id = any(:ids::uuid[]) and until = 'infinity'
order by id

-- name: end_examples
-- A state of an example is never changed: it ends where the next version begins.
update examples set until = :as_of
where workspace_id = :workspace_id and dataset_id = :dataset_id and id = any(:ids::uuid[]) and until = 'infinity'

-- name: write_examples
-- Fewer rows than examples if the id of one is taken.
insert into examples (
    workspace_id, dataset_id, since, id, created_at, position, inputs, outputs, metadata, source_run_id, attachments
)
select :workspace_id, :dataset_id, :since, x.id, x.created_at, x.position, x.inputs::json, x.outputs::json,
       x.metadata::jsonb, x.source_run_id, x.attachments::jsonb
from unnest(
    :id::uuid[], :created_at::timestamptz[], :position::int[], :inputs::text[], :outputs::text[], :metadata::text[],
    :source_run_id::uuid[], :attachments::text[]
) as x (id, created_at, position, inputs, outputs, metadata, source_run_id, attachments)
on conflict do nothing
returning id

-- name: forget_examples
delete from examples where workspace_id = :workspace_id and dataset_id = :dataset_id and id = any(:ids::uuid[])

-- name: forget_attachments
-- Deletes the attachments of a dataset that no version of an example refers to any more.
delete from example_attachments a
where a.workspace_id = :workspace_id and a.dataset_id = :dataset_id
  and not exists (
      select from examples x, jsonb_each_text(x.attachments) n (name, id)
      where x.workspace_id = a.workspace_id and x.dataset_id = a.dataset_id and n.id = a.id::text
  )

-- name: write_attachments
insert into example_attachments (id, workspace_id, dataset_id, mime_type, data)
select x.id, :workspace_id, :dataset_id, x.mime_type, x.data
from unnest(:id::uuid[], :mime_type::text[], :data::bytea[]) as x (id, mime_type, data)

-- name: attachment_types
select id, mime_type from example_attachments where workspace_id = :workspace_id and id = any(:ids::uuid[])

-- name: attachment
-- Used with a signed link, which only this server can create.
select mime_type, data from example_attachments where id = :attachment_id

-- name: attachments_of_run
select name, content_type as mime_type, data from attachments
where workspace_id = :workspace_id and run_id = :run_id and (:names::text[] is null or name = any(:names::text[]))
order by name

-- name: source_runs
select id, inputs, outputs from readable_runs where workspace_id = :workspace_id and id = any(:ids::uuid[])

-- name: list_splits
-- Clients write the metadata, so a `dataset_split` of another type counts as none.
select distinct s.split
from examples x, jsonb_array_elements_text(
    case when jsonb_typeof(x.metadata -> 'dataset_split') = 'array' then x.metadata -> 'dataset_split' else '[]' end
) as s (split)
where x.workspace_id = :workspace_id and x.dataset_id = :dataset_id
  and case when :as_of::timestamptz is null then x.until = 'infinity'
           else x.since <= :as_of::timestamptz and x.until > :as_of::timestamptz end
order by 1

-- name: bytes_of_examples
-- All examples of a dataset, in the order in which they are written to files. The length of JSON is that of its text.
select x.id, octet_length(x.inputs::text)::bigint + coalesce(octet_length(x.outputs::text), 0) as bytes
from examples x
where x.workspace_id = :workspace_id and x.dataset_id = :dataset_id
  and case when :as_of::timestamptz is null then x.until = 'infinity'
           else x.since <= :as_of::timestamptz and x.until > :as_of::timestamptz end
order by x.created_at, x.position, x.id

-- name: some_examples
-- In the order of `bytes_of_examples`.
select x.id, x.inputs, x.outputs, x.metadata
from examples x
where x.workspace_id = :workspace_id and x.dataset_id = :dataset_id and x.id = any(:ids::uuid[])
  and case when :as_of::timestamptz is null then x.until = 'infinity'
           else x.since <= :as_of::timestamptz and x.until > :as_of::timestamptz end
order by x.created_at, x.position, x.id

-- name: bytes_of_some_examples
-- How much reading them would take, so that a response is cut before it is read.
select x.id, octet_length(x.inputs::text)::bigint + coalesce(octet_length(x.outputs::text), 0) as bytes
from examples x
where x.workspace_id = :workspace_id and x.id = any(:ids::uuid[]) and x.until = 'infinity'

-- name: columns_of_dataset
-- The keys of inputs and of outputs, each at the position where an example names it first.
select k.is_output, k.key
from (
    select x.created_at, x.position, x.id, p.is_output, j.key, j.ordinal
    from examples x
    cross join lateral (values (false, x.inputs), (true, x.outputs)) p (is_output, value)
    cross join lateral json_object_keys(
        case when json_typeof(p.value) = 'object' then p.value else '{}' end
    ) with ordinality j (key, ordinal)
    where x.workspace_id = :workspace_id and x.dataset_id = :dataset_id
      and case when :as_of::timestamptz is null then x.until = 'infinity'
               else x.since <= :as_of::timestamptz and x.until > :as_of::timestamptz end
) k
group by k.is_output, k.key
order by k.is_output, min((k.created_at, k.position, k.ordinal)::text), k.key
