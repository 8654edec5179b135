-- name: run_by_id
-- A row without a name or a project is only the place of a run that was not posted yet. A child whose parent never came
-- is shown as a trace of its own.
select id, name, coalesce(run_type, 'chain') as run_type, status, coalesce(trace_id, id) as trace_id,
       coalesce(dotted_order, own_order(start_time, received_at, id)) as dotted_order, parent_run_id,
       project_id as session_id, reference_example_id, coalesce(start_time, received_at) as start_time, end_time,
       coalesce(tags, '{}') as tags, error, inputs, outputs, extra, events, serialized
from runs
where workspace_id = :workspace_id and id = :run_id and name is not null and project_id is not null
