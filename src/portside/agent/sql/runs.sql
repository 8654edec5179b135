-- name: admit_run
select outcome, attempt, created_at from admit_run(
    :run_id, :thread_id, :assistant_id, :metadata, :kwargs, :strategy, :thread_metadata, :create_thread, :temporary,
    make_interval(secs => :delay_s), :admitted_by, :worker_id, make_interval(secs => :lease_s)
)

-- name: get_run
select run_id, thread_id, assistant_id, status, metadata, kwargs, multitask_strategy, created_at, updated_at, error,
       kwargs ->> 'langsmith_session_name' as langsmith_session_name
from runs where run_id = :run_id and thread_id = :thread_id

-- name: list_runs
select run_id, thread_id, assistant_id, status, metadata, kwargs, multitask_strategy, created_at, updated_at, error,
       kwargs ->> 'langsmith_session_name' as langsmith_session_name
from runs
where thread_id = :thread_id and (:status::text is null or status = :status)
order by number desc limit :limit offset :offset

-- name: run_result
-- What a client that waits for a run of another process needs: is it over, and what came out.
select r.status, r.error, t."values"::text as "values", t.interrupts
from runs r join threads t using (thread_id)
where r.run_id = :run_id and r.thread_id = :thread_id
