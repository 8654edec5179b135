-- name: claim_runs
-- A batch per trip. Only the head of a thread is not blocked, so the cost does not grow with a thread's backlog.
update runs set
    status = 'running', attempt = attempt + 1, worker_id = :worker_id, updated_at = now(),
    leased_until = now() + make_interval(secs => :lease_s)
where run_id in (
    select run_id from runs
    where status = 'pending' and not is_blocked and run_after <= now()
    order by number limit :limit for update skip locked
)
returning run_id, thread_id, assistant_id, kwargs, attempt, is_temporary

-- name: renew_leases
-- Returns what is still ours; a run that is missing was given to somebody else and must be stopped.
update runs set leased_until = now() + make_interval(secs => :lease_s)
where worker_id = :worker_id and status = 'running' and run_id = any(:run_ids::uuid[])
returning run_id

-- name: finish_run
select finish_run(
    :run_id, :worker_id, :attempt, :status, :thread_status,
    :values::text::jsonb, :interrupts::jsonb, :error::jsonb
)

-- name: hand_back_runs
-- On shutdown: the runs go on elsewhere from their last checkpoint; this attempt does not count against them.
update runs set status = 'pending', worker_id = null, leased_until = null, attempt = attempt - 1
where worker_id = :worker_id and status = 'running' and run_id = any(:run_ids::uuid[])

-- name: release_expired_runs
select run_id, outcome from release_expired_runs(:limit, :max_attempts)

-- name: has_own_checkpoint
-- Whether a run that is tried again got far enough to be resumed instead of begun anew.
select exists (
    select 1 from checkpoints where thread_id = :thread_id and metadata ->> 'run_id' = :run_id
)
