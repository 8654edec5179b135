-- name: get_run
-- replaceable: runs
select run_id, thread_id, assistant_id, status, metadata, kwargs, multitask_strategy, created_at, updated_at, error,
       cancel_reason, kwargs -> 'langsmith_tracer' ->> 'project_name' as langsmith_session_name
from runs where run_id = :run_id and thread_id = :thread_id

-- name: get_runs
-- replaceable: runs
-- undecryptable: mark
select run_id, thread_id, assistant_id, status, metadata, kwargs, multitask_strategy, created_at, updated_at, error,
       cancel_reason, kwargs -> 'langsmith_tracer' ->> 'project_name' as langsmith_session_name
from runs where run_id = any(:run_ids::uuid[])

-- name: list_runs
-- replaceable: runs
-- undecryptable: mark
-- The two wide columns are read only if they are selected.
select run_id, thread_id, assistant_id, status,
       case when :with_metadata::boolean then metadata else '{}' end as metadata,
       case when :with_kwargs::boolean then kwargs else '{}' end as kwargs,
       multitask_strategy, created_at, updated_at, error, cancel_reason,
       kwargs -> 'langsmith_tracer' ->> 'project_name' as langsmith_session_name
from runs
where thread_id = :thread_id and (:status::text is null or status = :status)
order by number desc limit :limit offset :offset

-- name: search_active_runs
-- replaceable: runs
-- undecryptable: mark
-- Running runs first, then pending ones in the order in which they start. Reads only the partial index of active runs.
select r.run_id, r.thread_id, r.assistant_id, r.cron_id, r.status, r.multitask_strategy, r.is_temporary, r.created_at,
       r.started_at, r.updated_at, r.attempt, r.lost_attempts, r.worker_id, r.waits_for, r.blocked_by, r.run_after, r.error,
       r.cancel_reason
from found_runs r
where r.status in ('pending', 'running') and r.status = any(:statuses::text[])
  and (:assistant_id::uuid is null or r.assistant_id = :assistant_id)
  and (:access::jsonb is null or exists (
      select from threads t where t.thread_id = r.thread_id and matches_access(t.metadata, :access)
  ))
order by r.status desc, r.run_after > now(), case when r.run_after > now() then r.run_after else r.queue_position end, r.number
limit :limit offset :offset

-- name: search_failed_runs
-- replaceable: runs
-- undecryptable: mark
-- Newest first, by the partial index of failed runs.
select r.run_id, r.thread_id, r.assistant_id, r.cron_id, r.status, r.multitask_strategy, r.is_temporary, r.created_at,
       r.started_at, r.updated_at, r.attempt, r.lost_attempts, r.worker_id, r.waits_for, r.blocked_by, r.run_after, r.error,
       r.cancel_reason
from found_runs r
where r.status in ('error', 'timeout') and r.status = any(:statuses::text[])
  and (:assistant_id::uuid is null or r.assistant_id = :assistant_id)
  and (:access::jsonb is null or exists (
      select from threads t where t.thread_id = r.thread_id and matches_access(t.metadata, :access)
  ))
order by r.number desc limit :limit offset :offset

-- name: search_runs_of_cron
-- replaceable: runs
-- undecryptable: mark
-- The condition on the length matches the partial index, which leaves out ids that clients made up.
select r.run_id, r.thread_id, r.assistant_id, r.cron_id, r.status, r.multitask_strategy, r.is_temporary, r.created_at,
       r.started_at, r.updated_at, r.attempt, r.lost_attempts, r.worker_id, r.waits_for, r.blocked_by, r.run_after, r.error,
       r.cancel_reason
from found_runs r
where r.cron_id = :cron_id::uuid::text
  and length(r.cron_id) = 36 and r.status = any(:statuses::text[])
  and (:thread_id::uuid is null or r.thread_id = :thread_id)
  and (:assistant_id::uuid is null or r.assistant_id = :assistant_id)
  and (:access::jsonb is null or exists (
      select from threads t where t.thread_id = r.thread_id and matches_access(t.metadata, :access)
  ))
order by r.number desc limit :limit offset :offset

-- name: search_runs_of_thread
-- replaceable: runs
-- undecryptable: mark
-- By the index of a thread's runs, so every status may be searched (`search_active_runs` has another index).
select r.run_id, r.thread_id, r.assistant_id, r.cron_id, r.status, r.multitask_strategy, r.is_temporary, r.created_at,
       r.started_at, r.updated_at, r.attempt, r.lost_attempts, r.worker_id, r.waits_for, r.blocked_by, r.run_after, r.error,
       r.cancel_reason
from found_runs r
where r.thread_id = :thread_id and (:run_id::uuid is null or r.run_id = :run_id::uuid)
  and r.status = any(:statuses::text[])
  and (:assistant_id::uuid is null or r.assistant_id = :assistant_id)
  and (:access::jsonb is null or exists (
      select from threads t where t.thread_id = r.thread_id and matches_access(t.metadata, :access)
  ))
order by r.number desc limit :limit offset :offset

-- name: thread_of_run
select thread_id from runs where run_id = :run_id

-- name: graph_before
-- The graph of the thread's last other run: it can read the thread's state once this run is rolled back.
select kwargs #>> '{config,configurable,graph_id}'
from runs where thread_id = :thread_id and run_id <> :run_id and status <> 'pending'
order by number desc limit 1

-- name: has_run
-- Asked until the worker that executes the run has deleted it.
select exists (select 1 from runs where thread_id = :thread_id and run_id = any(:run_ids::uuid[]))

-- name: run_result
-- For a client that waits for a run of another process: whether it has ended, and its result.
select t.thread_id, r.status, r.error, r.is_temporary, t."values"::text as "values", t.long_values::text, t.interrupts
from runs r join threads t using (thread_id)
where r.run_id = :run_id and r.thread_id = :thread_id
