-- name: admit_run
select outcome, attempt, created_at from admit_run(
    :run_id, :thread_id, :assistant_id, :metadata, :kwargs, :strategy, :thread_metadata, :create_thread, :temporary,
    make_interval(secs => :delay_s), :admitted_by, :worker_id, make_interval(secs => :lease_s)
)

-- name: admit_runs
-- A batch in one statement, so that all are admitted or none. They wait for a worker.
select a.outcome, a.attempt, a.created_at
from rows from (jsonb_to_recordset(:admissions::jsonb) as (
    run_id uuid, thread_id uuid, assistant_id uuid, metadata jsonb, kwargs jsonb, strategy text,
    thread_metadata jsonb, create_thread boolean, temporary boolean, delay_s float8
)) with ordinality as n (
    run_id, thread_id, assistant_id, metadata, kwargs, strategy, thread_metadata, create_thread, temporary, delay_s, place
)
cross join lateral admit_run(
    n.run_id, n.thread_id, n.assistant_id, n.metadata, n.kwargs, n.strategy, n.thread_metadata, n.create_thread,
    n.temporary, make_interval(secs => n.delay_s), :admitted_by::uuid, null, interval '0'
) a
order by n.place

-- name: claim_runs
-- A batch per trip. Only the head of a thread is not blocked, so the cost does not grow with a thread's backlog.
update runs r set
    status = 'running', attempt = r.attempt + 1, worker_id = :worker_id, updated_at = now(),
    started_at = coalesce(r.started_at, now()), leased_until = now() + make_interval(secs => :lease_s)
from (
    select run_id, started_at is not null as was_begun from runs
    where status = 'pending' and not is_blocked and run_after <= now()
    order by number limit :limit for update skip locked
) ready
where r.run_id = ready.run_id
returning r.run_id, r.thread_id, r.assistant_id, r.kwargs, r.attempt, r.is_temporary, ready.was_begun,
    r.cancel_action, r.cancel_reason, extract(epoch from now() - greatest(r.run_after, r.created_at))::float8 as waited_s

-- name: renew_leases
-- Returns what is still ours, and what is asked of it; a run that is missing was given to somebody else and must be
-- stopped. Locked in the order of the threads, as everything that locks several runs.
update runs set leased_until = now() + make_interval(secs => :lease_s)
where run_id in (
    select run_id from runs
    where worker_id = :worker_id and status = 'running' and run_id = any(:run_ids::uuid[])
    order by thread_id for update
)
returning run_id, cancel_action, cancel_reason

-- name: end_run
select end_run(
    :run_id, :thread_id, :worker_id, :attempt, :status, :thread_status,
    :values::text::jsonb, :interrupts::jsonb, :error::jsonb
)

-- name: hand_back_runs
-- On shutdown: the runs go on elsewhere from their last checkpoint; this attempt does not count against them.
update runs set status = 'pending', worker_id = null, leased_until = null, attempt = attempt - 1
where run_id in (
    select run_id from runs
    where worker_id = :worker_id and status = 'running' and run_id = any(:run_ids::uuid[])
    order by thread_id for update
)

-- name: release_expired_runs
select run_id, outcome from release_expired_runs(:limit, :max_attempts)

-- name: cancel_runs
select thread_id, run_id, outcome
from cancel_runs(:thread_id, :run_ids, :statuses, :action, :reason, :after, :limit)

-- name: delete_run
select outcome, assistant_id, kwargs, attempt, is_temporary
from delete_run(:run_id, :thread_id, :worker_id, make_interval(secs => :lease_s), :reason)

-- name: keep_result
-- A client of another process waits for a stateless run: its thread is kept for a minute after the end.
update runs set admitted_by = null
where run_id = :run_id and is_temporary and admitted_by <> :worker_id and status in ('pending', 'running')

-- name: has_own_checkpoint
-- Whether a run that is tried again got far enough to be resumed instead of begun anew.
select exists (
    select 1 from checkpoints where thread_id = :thread_id and metadata ->> 'run_id' = :run_id
)
