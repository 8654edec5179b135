-- name: thread_fits
-- What a stateless run left counts as well: its run can be joined for a while.
select fits(metadata, :access) from threads where thread_id = :thread_id

-- name: has_thread
select true from threads where thread_id = :thread_id

-- name: assistant_fits
select fits(metadata, :access) from assistants where assistant_id = :assistant_id
