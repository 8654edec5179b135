-- name: thread_fits
-- What a stateless run left counts as well: its run can be joined for a while.
select fits(metadata, :access) from threads where thread_id = :thread_id

-- name: has_thread
select true from threads where thread_id = :thread_id

-- name: metadata_of_thread
select metadata from threads where thread_id = :thread_id and delete_after is null

-- name: assistant_fits
select fits(metadata, :access) from assistants where assistant_id = :assistant_id

-- name: admit_run_for
-- As `admit_run`, for a caller who may not see every thread.
select outcome, attempt, created_at, run_id, thread_id, metadata from admit_run_for(
    :access, :new_thread,
    :run_id, :thread_id, :assistant_id, :inherited, :metadata, :kwargs, :strategy, :priority, :thread_metadata,
    :thread_config, :create_thread, :temporary, make_interval(secs => :delay_s), :key_scope, :key, :key_place, :digest,
    :admitted_by, :worker_id, make_interval(secs => :lease_s), :asked_by
)
where :seen::text is null or exists (
    select from assistants where assistant_id = :assistant_id and updated_at = :seen::timestamptz
)

-- name: thread_of_cron
select thread_id from crons where cron_id = :cron_id

-- name: cron_fits
-- A cron on a thread is seen by those who see the thread.
select (:access::jsonb is null or fits(c.metadata, :access))
    and (:thread_access::jsonb is null or c.thread_id is null or exists (
        select from threads t where t.thread_id = c.thread_id and fits(t.metadata, :thread_access)
    ))
from crons c where c.cron_id = :cron_id

-- name: threads_that_fit
-- Each thread with the filter that holds for it, null for none.
select t.thread_id from unnest(:thread_ids::uuid[], :filters::text[]) as asked (thread_id, access)
join threads t on t.thread_id = asked.thread_id
where asked.access is null or fits(t.metadata, asked.access::jsonb)

-- name: threads_at_work
-- Threads that fit and have a run of these statuses.
select distinct t.thread_id from runs r join threads t using (thread_id)
where r.status in ('pending', 'running') and r.status = any (:statuses::text[]) and fits(t.metadata, :access)
    and (:thread_id::uuid is null or r.thread_id = :thread_id)
order by t.thread_id
