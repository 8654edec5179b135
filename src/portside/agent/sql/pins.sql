-- name: pin_thread
-- Begin a run with the revision of its thread, or with the given one, and return which. The thread keeps its revision if
-- this is another attempt at its last run, or if that run left it interrupted. `left_revision_id` is a revision that it
-- would keep and that is not available any more.
with before as (
    select p.revision_id, p.revision_id = any(:available::uuid[]) as is_available
    from thread_revisions p join threads t on t.thread_id = p.thread_id
    where p.thread_id = :thread_id and (p.run_id = :run_id or t.idle_status = 'interrupted')
),
written as (
    insert into thread_revisions (thread_id, revision_id, run_id)
    select t.thread_id, coalesce((select b.revision_id from before b where b.is_available), :revision_id), :run_id
    from threads t where t.thread_id = :thread_id
    on conflict (thread_id) do update set revision_id = excluded.revision_id, run_id = excluded.run_id
    returning revision_id
)
select w.revision_id, (select b.revision_id from before b where not b.is_available) as left_revision_id
from written w

-- name: revision_of_thread
-- The revision that a thread continues with; no row for one that has nothing left to finish.
select p.revision_id from thread_revisions p join threads t on t.thread_id = p.thread_id
where p.thread_id = :thread_id and t.status in ('busy', 'interrupted')

-- name: count_threads_of_revisions
-- A thread holds its revision only while it is busy or interrupted.
select p.revision_id, count(*) filter (where t.status = 'busy') as busy,
    count(*) filter (where t.status = 'interrupted') as interrupted
from thread_revisions p join threads t on t.thread_id = p.thread_id
where t.status in ('busy', 'interrupted')
group by p.revision_id

-- name: delete_finished_pins
-- The threads are locked: none gets a run, and with it a pin, between the look and the delete.
with finished as (
    select t.thread_id from threads t join thread_revisions p on p.thread_id = t.thread_id
    where t.status in ('idle', 'error')
    limit :limit for update of t skip locked
)
delete from thread_revisions p using finished f where p.thread_id = f.thread_id

-- name: delete_orphaned_pins
-- Pins have no foreign key to threads, so those of deleted threads are looked for.
delete from thread_revisions p where not exists (select from threads t where t.thread_id = p.thread_id)
