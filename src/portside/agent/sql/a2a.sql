-- name: a2a_task
-- plain: late_error (the name of an error)
-- The state of a task of the A2A protocol: its last run, and whether the thread's values are those of that run. Messages
-- and results are read elsewhere. A run that came after another answer to the same question ended in the error
-- `late_error` and changed nothing, so it does not count.
select last.run_id, last.thread_id, last.metadata ->> 'a2a.context_id' as context_id, :start::text as start, last.updated_at, last.is_last,
       a2a_state(last.status, last.is_closed, last.is_last, t.status = 'interrupted') as state
from (
    select r.*, r.metadata ? 'a2a.closed' as is_closed, not exists (
        select 1 from runs later
        where later.thread_id = r.thread_id and later.number > r.number and later.status not in ('pending', 'running')
    ) as is_last
    from runs r
    where r.thread_id = :thread_id and r.assistant_id = :assistant_id
      and r.metadata ? 'a2a.task_start_id' and r.metadata ->> 'a2a.task_start_id' = :start::text
      and r.error ->> 'error' is distinct from :late_error::text
    order by r.number desc limit 1
) last
join threads t using (thread_id)
where t.delete_after is null

-- name: a2a_runs_of_task
select run_id from runs
where thread_id = :thread_id and assistant_id = :assistant_id
  and metadata ? 'a2a.task_start_id' and metadata ->> 'a2a.task_start_id' = :start::text
order by number

-- name: a2a_waiting
-- The run that asked the question at which a thread waits, and its task; no row unless it is a task of this assistant.
select r.run_id, r.metadata ->> 'a2a.task_start_id' as start
from threads t
join lateral (
    select run_id, status, assistant_id, metadata from runs where thread_id = t.thread_id order by number desc limit 1
) r on true
where t.thread_id = :thread_id and t.status = 'interrupted' and r.status = 'success'
  and r.assistant_id = :assistant_id and r.metadata ? 'a2a.task_start_id' and not r.metadata ? 'a2a.closed'

-- name: a2a_close_task
-- Closes a task that waits for an answer: it is canceled. The thread is locked first, as by an admission. If an answer was
-- admitted meanwhile, the task stays open, unless another task has superseded it.
with locked as (
    select thread_id, status from threads where thread_id = :thread_id for update
)
update runs r set metadata = r.metadata || '{"a2a.closed": true}', updated_at = now()
from locked l
where r.run_id = :run_id and r.thread_id = l.thread_id and r.status = 'success'
  and (:is_superseded::boolean or (l.status = 'interrupted' and not exists (
      select 1 from runs later where later.thread_id = l.thread_id and later.number > r.number
  )))
returning r.run_id

-- name: a2a_tasks
-- plain: late_error (the name of an error)
-- The tasks of an assistant, each by its last run, last changed first. `before_at` and `before_id` are the last task of
-- the page before.
with last_runs as (
    select distinct on (r.thread_id, r.metadata ->> 'a2a.task_start_id')
        r.run_id, r.thread_id, r.number, r.status, r.updated_at, r.metadata ->> 'a2a.context_id' as context_id,
        r.metadata ->> 'a2a.task_start_id' as start, r.metadata ? 'a2a.closed' as is_closed
    from runs r
    where r.metadata ? 'a2a.task_start_id' and r.assistant_id = :assistant_id
      and (:thread_id::uuid is null or r.thread_id = :thread_id)
      and r.error ->> 'error' is distinct from :late_error::text
    order by r.thread_id, r.metadata ->> 'a2a.task_start_id', r.number desc
), standing as (
    select r.*, t.status = 'interrupted' as is_waiting, not exists (
        select 1 from runs later
        where later.thread_id = r.thread_id and later.number > r.number and later.status not in ('pending', 'running')
    ) as is_last
    from last_runs r join threads t using (thread_id)
    where t.delete_after is null and (:access::jsonb is null or matches_access(t.metadata, :access::jsonb))
), tasks as (
    select run_id, thread_id, context_id, start, updated_at, is_last, a2a_state(status, is_closed, is_last, is_waiting) as state
    from standing
), matching as (
    select * from tasks
    where (:state::text is null or state = :state) and (:after::timestamptz is null or updated_at > :after)
)
select *, (select count(*) from matching) as total
from matching
where :before_at::timestamptz is null or (updated_at, run_id) < (:before_at, :before_id::uuid)
order by updated_at desc, run_id desc
limit :limit
