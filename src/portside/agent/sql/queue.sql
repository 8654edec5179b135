-- name: admit_runs
-- encrypted: admissions[].inherited as assistant.metadata, admissions[].metadata as run.metadata
-- encrypted: admissions[].kwargs as run.kwargs, admissions[].thread_metadata as thread.metadata
-- encrypted: admissions[].thread_config as thread.config, admissions[].new_thread as thread.metadata
-- access: access_filters[]
-- Several runs in one statement, so that all are admitted or none. In a row without an outcome, the assistant has changed
-- since this process read it.
select outcome, attempt, created_at, run_id, thread_id, metadata
from admit_runs(:admissions::jsonb, :access_filters::text[], :worker_id, make_interval(secs => :lease_s), :wait)
order by batch_index

-- name: count_pending
-- Counts up to the limit and not beyond, so its cost does not grow with the queue.
select count_pending(:caller, :limit)

-- name: clear_run_keys
-- Expired idempotency keys. A key that is used again before it is cleared does not find the old run (`admit_run`).
update runs set request_key = null
where run_id in (
    select run_id from runs
    where request_key is not null and created_at <= now() - run_key_lifetime()
    order by created_at limit :limit for update skip locked
)

-- name: claim_runs
-- replaceable: runs
-- undecryptable: mark and keep
-- A batch in one statement. Only the first run of a thread is not blocked, so the cost does not grow with a thread's backlog.
select run_id, thread_id, assistant_id, kwargs, attempt, is_temporary, was_started, cancel_action, cancel_reason,
    waited_s, is_streamed_elsewhere, is_suspect
from claim_runs(:worker_id, make_interval(secs => :lease_s), :limit)

-- name: renew_leases
-- Returns the runs that are still this worker's, with their cancellations. A missing run is another worker's now, or was
-- deleted: this worker must stop it. Rows are locked in the order of the threads, as in every statement that locks several runs.
update runs set leased_until = now() + make_interval(secs => :lease_s)
where run_id in (
    select run_id from runs
    where worker_id = :worker_id and status = 'running' and run_id = any(:run_ids::uuid[])
    order by thread_id for update
)
returning run_id, cancel_action, cancel_reason

-- name: end_runs
-- encrypted: values[] as thread.values, interrupts[] as thread.interrupts, errors[] as run.error
-- encrypted: webhook_values[] as thread.values
-- plain: long_values (names of channels and versions)
-- row: thread_id = thread_ids
-- undecryptable: mark and keep
-- Rows of the ended runs in the given order, then those of the runs that were claimed for the slots that became free.
select outcome, has_next, run_id, thread_id, assistant_id, kwargs, attempt, is_temporary, was_started, cancel_action,
    cancel_reason, waited_s, is_streamed_elsewhere, is_suspect
from end_runs(
    :worker_id, :run_ids, :thread_ids, :attempts, :statuses, :thread_statuses, :values, :interrupts, :errors, :wait,
    make_interval(secs => :lease_s), :claim_limit, :always_claim, :long_values,
    :webhook_values
)
order by batch_index

-- name: lose_attempt
-- An attempt was lost with its executor: let its lease run out now, so that the sweep of expired leases counts the attempt
-- like one of a worker that died. If the run may not be tried again, its lease stays, and the number of its lost attempts
-- is returned.
-- plain: max_retries (a number)
with own as (
    select run_id, lost_attempts from runs
    where run_id = :run_id and worker_id = :worker_id and attempt = :attempt and status = 'running' for update
),
released as (
    update runs r set leased_until = now() - interval '1 millisecond', is_suspect = true
    from own where r.run_id = own.run_id and own.lost_attempts < :max_retries
)
select lost_attempts + 1 from own where lost_attempts >= :max_retries

-- name: hand_back_runs
-- Returns runs to the queue, which continue from their last checkpoints under another worker, maybe after a delay. This is
-- not counted as a lost attempt. `attempt` stays: the next claim raises it, so that a late write of this owner is refused.
update runs set
    status = 'pending', worker_id = null, leased_until = null,
    is_suspect = is_suspect or :is_suspect,
    run_after = case when cancel_action is null then greatest(run_after, now() + make_interval(secs => :delay_s))
        else run_after end
where run_id in (
    select r.run_id from runs r
    join unnest(:run_ids::uuid[], :attempts::int[]) as returned (run_id, attempt)
        on returned.run_id = r.run_id and returned.attempt = r.attempt
    where r.worker_id = :worker_id and r.status = 'running'
    order by r.thread_id for update of r
)

-- name: seconds_since_start
-- Since a worker first started the run, however often it was handed back.
select extract(epoch from now() - started_at)::float8 from runs where run_id = :run_id

-- name: release_expired_runs
-- The function skips rows that another process has locked, so that every process may sweep.
select run_id, outcome from release_expired_runs(:limit, :max_attempts)

-- name: cancel_runs
-- plain: reason (a fixed text of the server)
-- Starts after a thread, so that the caller can go on where the last statement ended.
select thread_id, run_id, outcome
from cancel_runs(:thread_id, :run_ids, :assistant_id, :statuses, :action, :reason, :after, :limit)

-- name: delete_run
-- plain: reason (a fixed text of the server)
-- undecryptable: mark and keep
-- The outcome says what is left to do: see `DeleteOutcome` in `queue/types.py`.
select outcome, assistant_id, kwargs, attempt, is_temporary
from delete_run(:run_id, :thread_id, :worker_id, make_interval(secs => :lease_s), :reason)

-- name: keep_result
-- A client of another process waits for a stateless run: its thread must be kept for a minute after the end.
update runs set admitted_by = null
where run_id = :run_id and is_temporary and admitted_by <> :worker_id and status in ('pending', 'running')

-- name: has_own_checkpoint
-- Whether an earlier attempt got far enough to be resumed instead of started again.
select exists (
    select 1 from checkpoints where thread_id = :thread_id and metadata ->> 'run_id' = :run_id
)
