-- Conditions on `r`, a readable run. Each is a complete statement, so that it can be tested like any other query;
-- `conditions.py` uses the text after the first `where`.

-- name: when_workspace
select from readable_runs r where r.workspace_id = :value::uuid

-- name: when_ids
select from readable_runs r where r.id = any(:value::uuid[])

-- name: when_trace
select from readable_runs r where r.trace_id = :value::uuid

-- name: when_parent
select from readable_runs r where r.parent_run_id = :value::uuid

-- name: when_below
-- A run and all runs below it, by its position in the trace.
select from readable_runs r where r.trace_id = :trace_id::uuid
  and starts_with(r.dotted_order || '.', :dotted_order::text || '.')

-- name: when_in_project
select from readable_runs r where r.session_id = :value::uuid

-- name: when_in_projects
select from readable_runs r where r.session_id = any(:value::uuid[])

-- name: when_reference_examples
select from readable_runs r where r.reference_example_id = any(:value::uuid[])

-- name: when_from
select from readable_runs r where r.start_time >= :value::timestamptz

-- name: when_until
select from readable_runs r where r.start_time <= :value::timestamptz

-- name: when_before
select from readable_runs r where (r.start_time, r.id) < (:moment::timestamptz, :id::uuid)

-- name: when_not_before
select from readable_runs r where (r.start_time, r.id) >= (:moment::timestamptz, :id::uuid)

-- name: when_after
select from readable_runs r where (r.start_time, r.id) > (:moment::timestamptz, :id::uuid)

-- name: when_failed
select from readable_runs r where (r.status = 'error') = :value::boolean and (not :value::boolean or r.error is not null)

-- name: when_root
select from readable_runs r where r.is_root = :value::boolean

-- name: when_id
select from readable_runs r where text_matches(r.id::text, :op::text, :value::text[])

-- name: when_trace_id
select from readable_runs r where text_matches(r.trace_id::text, :op::text, :value::text[])

-- name: when_parent_run_id
select from readable_runs r where text_matches(r.parent_run_id::text, :op::text, :value::text[])

-- name: when_thread
select from readable_runs r where text_matches(r.thread_id, :op::text, :value::text[])

-- name: when_in_thread
-- As a plain comparison, which uses the index.
select from readable_runs r where r.thread_id = :value::text

-- name: when_in_threads
select from readable_runs r where r.thread_id = any(:value::text[])

-- name: when_threaded
select from readable_runs r where r.thread_id is not null

-- name: when_name
select from readable_runs r where text_matches(r.name, :op::text, :value::text[])

-- name: when_run_type
select from readable_runs r where text_matches(r.run_type, :op::text, :value::text[])

-- name: when_status
select from readable_runs r where text_matches(r.status, :op::text, :value::text[])

-- name: when_status_is
-- Rare states are found by plain columns first, so that finding none of a million runs is quick: an index has those with an
-- error or an interrupt.
select from readable_runs r where r.status = :value::text
  and (:value::text <> 'error' or r.error is not null)
  and (:value::text <> 'interrupted' or r.error is not null or r.has_interrupts)
  and (:value::text <> 'pending' or (r.error is null and r.end_time is null))

-- name: when_error
select from readable_runs r where text_matches(r.error, :op::text, :value::text[])

-- name: when_inputs
select from readable_runs r where text_matches(r.inputs, :op::text, :value::text[])

-- name: when_outputs
select from readable_runs r where text_matches(r.outputs, :op::text, :value::text[])

-- name: when_start_time
select from readable_runs r where time_matches(r.start_time, :op::text, :value::timestamptz[])

-- name: when_end_time
select from readable_runs r where time_matches(r.end_time, :op::text, :value::timestamptz[])

-- name: when_latency
select from readable_runs r where number_matches(r.latency, :op::text, :value::float8[])

-- name: when_total_tokens
select from readable_runs r where number_matches(r.total_tokens, :op::text, :value::float8[])

-- name: when_prompt_tokens
select from readable_runs r where number_matches(r.prompt_tokens, :op::text, :value::float8[])

-- name: when_completion_tokens
select from readable_runs r where number_matches(r.completion_tokens, :op::text, :value::float8[])

-- name: when_prompt_cost
select from readable_runs r where number_matches(r.prompt_cost::float8, :op::text, :value::float8[])

-- name: when_completion_cost
select from readable_runs r where number_matches(r.completion_cost::float8, :op::text, :value::float8[])

-- name: when_total_cost
select from readable_runs r where number_matches(r.total_cost::float8, :op::text, :value::float8[])

-- name: when_trace_tokens
-- The tokens of all model runs of the run's trace.
select from readable_runs r where number_matches((
    select coalesce(sum(o.total_tokens), 0)::float8 from readable_runs o
    where o.workspace_id = r.workspace_id and o.trace_id = r.trace_id
), :op::text, :value::float8[])

-- name: when_trace_cost
select from readable_runs r where number_matches((
    select coalesce(sum(o.total_cost), 0)::float8 from readable_runs o
    where o.workspace_id = r.workspace_id and o.trace_id = r.trace_id
), :op::text, :value::float8[])

-- name: when_execution_order
-- The number of a run in its trace; the root is 1.
select from readable_runs r where number_matches((
    select 1 + count(*) from readable_runs o
    where o.workspace_id = r.workspace_id and o.trace_id = r.trace_id and o.dotted_order < r.dotted_order
), :op::text, :value::float8[])

-- name: when_tagged
select from readable_runs r where r.tags && :value::text[]

-- name: when_any_tag
select from readable_runs r where cardinality(r.tags) > 0

-- name: when_metadata_holds
select from readable_runs r where parse_json(r.extra) -> 'metadata' @> :value::jsonb

-- name: when_searched
select from readable_runs r
where position(lower(:value::text) in lower(concat_ws(' ', r.name, r.error))) > 0
   or json_contains(r.inputs, :value::text, :escaped::text) or json_contains(r.outputs, :value::text, :escaped::text)

-- name: when_inputs_searched
select from readable_runs r where json_contains(r.inputs, :value::text, :escaped::text)

-- name: when_outputs_searched
select from readable_runs r where json_contains(r.outputs, :value::text, :escaped::text)

-- name: when_feedback
-- Key and score of the same piece of feedback.
select from readable_runs r where exists (
    select from readable_feedback f
    where f.workspace_id = r.workspace_id and f.run_id = r.id
      and text_matches(f.key, :key_op::text, :key_value::text[]) and number_matches(f.score, :score_op::text, :score_value::float8[])
)

-- name: when_metadata
-- Key and value of the same entry.
select from readable_runs r where exists (
    select from (select parse_json(r.extra) -> 'metadata' as doc offset 0) d
    cross join lateral jsonb_each_text(case when jsonb_typeof(d.doc) = 'object' then d.doc end) as m (key, value)
    where text_matches(m.key, :key_op::text, :key_value::text[]) and text_matches(m.value, :value_op::text, :value_value::text[])
)

-- name: when_root_of_trace
-- Runs of the traces whose root meets the condition that replaces `true`.
select from readable_runs r where r.trace_id in (
    select r.id from readable_runs r where r.workspace_id = :workspace_id::uuid and r.is_root and true
)

-- name: when_any_of_trace
select from readable_runs r where r.trace_id in (
    select r.trace_id from readable_runs r where r.workspace_id = :workspace_id::uuid and true
)

-- Conditions on `p`, a project.

-- name: when_project_id
select from projects p where text_matches(p.id::text, :op::text, :value::text[])

-- name: when_project_name
select from projects p where text_matches(p.name, :op::text, :value::text[])

-- name: when_project_description
select from projects p where text_matches(p.description, :op::text, :value::text[])

-- name: when_project_reference_dataset
select from projects p where text_matches(p.reference_dataset_id::text, :op::text, :value::text[])

-- name: when_project_start_time
select from projects p where time_matches(coalesce(p.start_time, p.created_at), :op::text, :value::timestamptz[])

-- name: when_project_end_time
select from projects p where time_matches(p.end_time, :op::text, :value::timestamptz[])

-- name: when_project_searched
select from projects p where position(lower(:value::text) in lower(concat_ws(' ', p.name, p.description))) > 0

-- name: when_project_metadata_holds
select from projects p where p.extra -> 'metadata' @> :value::jsonb

-- name: when_project_metadata
-- Key and value of the same entry.
select from projects p where exists (
    select from jsonb_each_text(
        case when jsonb_typeof(p.extra -> 'metadata') = 'object' then p.extra -> 'metadata' end
    ) as m (key, value)
    where text_matches(m.key, :key_op::text, :key_value::text[]) and text_matches(m.value, :value_op::text, :value_value::text[])
)
