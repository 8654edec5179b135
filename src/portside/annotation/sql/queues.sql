-- name: create_queue
-- No row if the workspace has a queue of this id.
insert into annotation_queues (workspace_id, id, name, description, rubric_instructions, rubric_items)
values (:workspace_id, :id, :name, :description, :rubric_instructions, :rubric_items)
on conflict do nothing
returning id

-- name: list_queues
select id, workspace_id as tenant_id, name, description, rubric_instructions, rubric_items, created_at, updated_at
from annotation_queues
where workspace_id = :workspace_id
  and (:ids::uuid[] is null or id = any(:ids::uuid[]))
  and (:name::text is null or name = :name::text)
  and (:name_contains::text is null or position(lower(:name_contains::text) in lower(name)) > 0)
order by created_at desc, id
limit :limit::int offset :offset::int

-- name: update_queue
-- Null leaves a column unchanged.
update annotation_queues set
    name = coalesce(:name::text, name),
    description = coalesce(:description::text, description),
    rubric_instructions = coalesce(:rubric_instructions::text, rubric_instructions),
    rubric_items = coalesce(:rubric_items::jsonb, rubric_items),
    updated_at = now()
where workspace_id = :workspace_id and id = :id
returning id

-- name: delete_queue
delete from annotation_queues where workspace_id = :workspace_id and id = :id returning id

-- name: keep_queue
-- The queue cannot be deleted before the transaction ends.
select id from annotation_queues where workspace_id = :workspace_id and id = :queue_id for key share

-- name: known_runs
select id from readable_runs where workspace_id = :workspace_id and id = any(:run_ids::uuid[])

-- name: queue_runs
-- A run that is in the queue keeps its position.
insert into queued_runs (workspace_id, queue_id, run_id)
select :workspace_id, :queue_id, x.id from unnest(:run_ids::uuid[]) with ordinality as x (id, number)
order by x.number
on conflict do nothing

-- name: queued_runs
-- The runs that still exist, in the order in which they were added.
select q.run_id, q.added_at, q.last_reviewed_time
from queued_runs q
where q.workspace_id = :workspace_id and q.queue_id = :queue_id
  and (:run_ids::uuid[] is null or q.run_id = any(:run_ids::uuid[]))
  and (:is_reviewed::boolean is null or (q.last_reviewed_time is not null) = :is_reviewed::boolean)
  and exists (select from readable_runs r where r.workspace_id = q.workspace_id and r.id = q.run_id)
order by q.position
limit :limit::int offset :offset::int

-- name: count_queued_runs
-- Only runs that still exist, as in `queued_runs`.
select count(*) as size, count(q.last_reviewed_time) as completed from queued_runs q
where q.workspace_id = :workspace_id and q.queue_id = :queue_id
  and exists (select from readable_runs r where r.workspace_id = q.workspace_id and r.id = q.run_id)

-- name: review_run
update queued_runs set last_reviewed_time = :last_reviewed_time
where workspace_id = :workspace_id and queue_id = :queue_id and run_id = :run_id
returning run_id

-- name: unqueue_run
delete from queued_runs
where workspace_id = :workspace_id and queue_id = :queue_id and run_id = :run_id
returning run_id
