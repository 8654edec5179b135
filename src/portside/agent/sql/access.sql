-- name: thread_matches
-- Threads of stateless runs are included, because clients may still join those runs.
select matches_access(metadata, :access) from threads where thread_id = :thread_id

-- name: has_thread
select true from threads where thread_id = :thread_id

-- name: metadata_of_thread
-- Not of a thread with `delete_after`, which belonged to a stateless run and counts as gone.
select metadata from threads where thread_id = :thread_id and delete_after is null

-- name: assistant_matches
select matches_access(metadata, :access) from assistants where assistant_id = :assistant_id

-- name: thread_of_cron
select thread_id from crons where cron_id = :cron_id

-- name: cron_matches
-- A cron on a thread is visible only to callers that may see the thread.
select (:access::jsonb is null or matches_access(c.metadata, :access))
    and (:thread_access::jsonb is null or c.thread_id is null or exists (
        select from threads t where t.thread_id = c.thread_id and matches_access(t.metadata, :thread_access)
    ))
from crons c where c.cron_id = :cron_id

-- name: threads_that_match
-- access: filters[]
-- `filters` has an access filter for each thread, null for none.
select t.thread_id from unnest(:thread_ids::uuid[], :filters::text[]) as requested (thread_id, access)
join threads t on t.thread_id = requested.thread_id
where requested.access is null or matches_access(t.metadata, requested.access::jsonb)

-- name: threads_with_active_runs
-- Threads that match the filter and have a run of one of these statuses.
select distinct t.thread_id from runs r join threads t using (thread_id)
where r.status in ('pending', 'running') and r.status = any (:statuses::text[]) and matches_access(t.metadata, :access)
    and (:thread_id::uuid is null or r.thread_id = :thread_id)
order by t.thread_id
