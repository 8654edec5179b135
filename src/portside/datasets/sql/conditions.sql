-- Conditions of filters: each is the part after `where`.

-- name: when_id
select from examples x where says(x.id::text, :op::text, :value::text[])

-- name: when_source_run_id
select from examples x where says(x.source_run_id::text, :op::text, :value::text[])

-- name: when_inputs
select from examples x where says(x.inputs::text, :op::text, :value::text[])

-- name: when_outputs
select from examples x where says(x.outputs::text, :op::text, :value::text[])

-- name: when_created_at
select from examples x where falls(x.created_at, :op::text, :value::timestamptz[])

-- name: when_modified_at
select from examples x where falls(x.since, :op::text, :value::timestamptz[])

-- name: when_searched
select from examples x where position(lower(:value::text) in lower(concat_ws(' ', x.inputs, x.outputs))) > 0

-- name: when_holds
select from examples x where x.metadata @> :value::jsonb

-- name: when_has_key
select from examples x where x.metadata ? :value::text

-- name: when_metadata
select from examples x
where exists (
    select from jsonb_each_text(x.metadata) m (key, value)
    where says(m.key, :key_op::text, :key_value::text[]) and says(m.value, :value_op::text, :value_value::text[])
)
