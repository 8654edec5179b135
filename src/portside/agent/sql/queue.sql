-- name: admit_run
-- The worker knows the assistant from before. Where it is not as it was seen then, nothing is done and no row returned.
select outcome, attempt, created_at, run_id, thread_id, metadata from admit_run(
    :run_id, :thread_id, :assistant_id, :inherited, :metadata, :kwargs, :strategy, :priority, :thread_metadata,
    :thread_config, :create_thread, :temporary, make_interval(secs => :delay_s), :key_scope, :key, :key_place, :digest,
    :admitted_by, :worker_id, make_interval(secs => :lease_s), :asked_by
)
where :seen::text is null or exists (
    select from assistants where assistant_id = :assistant_id and updated_at = :seen::timestamptz
)

-- name: admit_runs
-- Several in one statement, so that all are admitted or none. A row without an outcome is of an assistant that is not as
-- it was seen.
select outcome, attempt, created_at, run_id, thread_id, metadata
from admit_runs(:admissions::jsonb, :worker_id, make_interval(secs => :lease_s), :waits)
order by place

-- name: count_waiting
select count_waiting(:asked_by, :most)

-- name: forget_run_keys
-- Keys whose time is over. One that comes back before the sweep does is not taken for the old one (`admit_run`).
update runs set request_key = null
where run_id in (
    select run_id from runs
    where request_key is not null and created_at <= now() - run_key_lifetime()
    order by created_at limit :limit for update skip locked
)

-- name: claim_runs
-- A batch per trip. Only the head of a thread is not blocked, so the cost does not grow with a thread's backlog.
select run_id, thread_id, assistant_id, kwargs, attempt, is_temporary, was_begun, cancel_action, cancel_reason,
    waited_s, is_foreign
from claim_runs(:worker_id, make_interval(secs => :lease_s), :limit)

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

-- name: end_runs
-- Rows in the order that was asked in, then those of the runs that were claimed for the slots which the others leave.
select outcome, has_next, run_id, thread_id, assistant_id, kwargs, attempt, is_temporary, was_begun, cancel_action,
    cancel_reason, waited_s, is_foreign
from end_runs(
    :worker_id, :run_ids, :thread_ids, :attempts, :statuses, :thread_statuses, :values, :interrupts, :errors, :waits,
    make_interval(secs => :lease_s), :claims, :looks
)
order by place

-- name: hand_back_runs
-- The runs go on elsewhere from their last checkpoint, maybe after a delay. It counts no loss. The attempt stays as it is:
-- it tells the writes of one owner from those of the next.
update runs set
    status = 'pending', worker_id = null, leased_until = null,
    run_after = case when cancel_action is null then greatest(run_after, now() + make_interval(secs => :delay_s))
        else run_after end
where run_id in (
    select r.run_id from runs r
    join unnest(:run_ids::uuid[], :attempts::int[]) as held (run_id, attempt)
        on held.run_id = r.run_id and held.attempt = r.attempt
    where r.worker_id = :worker_id and r.status = 'running'
    order by r.thread_id for update of r
)

-- name: release_expired_runs
select run_id, outcome from release_expired_runs(:limit, :max_attempts)

-- name: cancel_runs
select thread_id, run_id, outcome
from cancel_runs(:thread_id, :run_ids, :assistant_id, :statuses, :action, :reason, :after, :limit)

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
