-- name: run_by_id
select id, name, run_type, status, trace_id, dotted_order, parent_run_id, session_id, reference_example_id, start_time,
       end_time, tags, error, inputs, outputs, extra, events, serialized
from readable_runs
where workspace_id = :workspace_id and id = :run_id
