-- Conditions of filters: `conditions.py` uses the text after `where`.

-- name: when_listed
-- The query parameters of a list of examples, apart from its filter.
select from examples x
where x.workspace_id = :workspace_id
  and (:dataset_id::uuid is null or x.dataset_id = :dataset_id::uuid)
  and (:ids::uuid[] is null or x.id = any(:ids::uuid[]))
  and case when :as_of::timestamptz is null then x.until = 'infinity'
           else x.since <= :as_of::timestamptz and x.until > :as_of::timestamptz end
  and (:metadata::jsonb is null or x.metadata @> :metadata::jsonb)
  and (:splits::text[] is null or x.metadata -> 'dataset_split' ?| :splits::text[])

-- name: when_id
select from examples x where text_matches(x.id::text, :op::text, :value::text[])

-- name: when_source_run_id
select from examples x where text_matches(x.source_run_id::text, :op::text, :value::text[])

-- name: when_inputs
select from examples x where text_matches(x.inputs::text, :op::text, :value::text[])

-- name: when_outputs
select from examples x where text_matches(x.outputs::text, :op::text, :value::text[])

-- name: when_created_at
select from examples x where time_matches(x.created_at, :op::text, :value::timestamptz[])

-- name: when_modified_at
select from examples x where time_matches(x.since, :op::text, :value::timestamptz[])

-- name: when_searched
select from examples x
where json_contains(x.inputs::text, :value::text, :escaped::text) or json_contains(x.outputs::text, :value::text, :escaped::text)

-- name: when_inputs_searched
select from examples x where json_contains(x.inputs::text, :value::text, :escaped::text)

-- name: when_outputs_searched
select from examples x where json_contains(x.outputs::text, :value::text, :escaped::text)

-- name: when_holds
select from examples x where x.metadata @> :value::jsonb

-- name: when_has_key
select from examples x where x.metadata ? :value::text

-- name: when_metadata
select from examples x
where exists (
    select from jsonb_each_text(x.metadata) m (key, value)
    where text_matches(m.key, :key_op::text, :key_value::text[]) and text_matches(m.value, :value_op::text, :value_value::text[])
)
