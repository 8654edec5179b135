-- name: extend_traces
-- Feedback makes the traces of its runs long-lived. Expired traces are excluded: this statement may have waited for their
-- deletion. Sorted, so that two requests wait for each other instead of deadlocking.
with locked as (
    select t.workspace_id, t.trace_id
    from traces t
    where t.workspace_id = :workspace_id and t.tier = 'shortlived' and t.expired_at is null and t.trace_id in (
        select coalesce(r.trace_id, r.id) from runs r
        where r.workspace_id = :workspace_id and r.id = any(:run_ids::uuid[])
    )
    order by t.trace_id
    for update
)
update traces t set tier = 'longlived', extended_at = now()
from locked h where t.workspace_id = h.workspace_id and t.trace_id = h.trace_id

-- name: due_traces
-- The oldest expired traces of a tier: as many as have at most `runs` runs together, but at least one. Concurrent tasks
-- skip the rows that another one has locked. `found` is the number of expired traces, up to `traces`.
with due as (
    select workspace_id, trace_id, received_at from traces
    where expired_at is null and tier = :tier and received_at < :before
    order by received_at
    limit :traces::int
    for update skip locked
),
sized as (
    select d.workspace_id, d.trace_id, count(*) over () as found,
           sum(n.runs) over (order by d.received_at, d.workspace_id, d.trace_id) - n.runs as runs_before
    from due d
    cross join lateral (
        select count(*) as runs from runs r
        where r.workspace_id = d.workspace_id and coalesce(r.trace_id, r.id) = d.trace_id
    ) n
)
select workspace_id, trace_id, found from sized where runs_before < :runs

-- name: extend_due_traces
-- Feedback may have arrived before its run: such traces become long-lived instead of being deleted.
update traces t set tier = 'longlived', extended_at = now()
from unnest(:workspace_ids::uuid[], :trace_ids::uuid[]) as d (workspace_id, trace_id)
where t.workspace_id = d.workspace_id and t.trace_id = d.trace_id and exists (
    select from runs r
    join feedback f on f.workspace_id = r.workspace_id and f.run_id = r.id
    where r.workspace_id = d.workspace_id and coalesce(r.trace_id, r.id) = d.trace_id and extends_trace(f.body)
)
returning t.workspace_id, t.trace_id

-- name: traces_of_project
-- Ids of other projects are ignored, and traces that have expired have no runs left.
select trace_id from traces
where workspace_id = :workspace_id and project_id = :project_id and trace_id = any(:trace_ids::uuid[])
  and expired_at is null

-- name: delete_traces
-- Deletes runs and everything that belongs to them. The rows of traces stay, because they were billed.
with targets as (
    select * from unnest(:workspace_ids::uuid[], :trace_ids::uuid[]) as d (workspace_id, trace_id)
),
deleted as (
    delete from runs r using targets d
    where r.workspace_id = d.workspace_id and coalesce(r.trace_id, r.id) = d.trace_id
    returning r.workspace_id, r.id
),
expired as (
    update traces t set expired_at = now()
    from targets d where t.workspace_id = d.workspace_id and t.trace_id = d.trace_id
)
select delete_rows_of_runs(array_agg(workspace_id), array_agg(id)) from deleted

-- name: empty_workspace_of_runs
-- A batch, so that the statement does not hold its locks for long.
with deleted as (
    delete from runs where workspace_id = :workspace_id and id in (
        select id from runs where workspace_id = :workspace_id order by id limit :batch::int
    )
    returning id
)
select count(*) from deleted

-- name: empty_workspace
-- Deletes everything of a workspace but its runs. The rows of traces stay, because they were billed.
with without_attachments as (
    delete from attachments where workspace_id = :workspace_id
),
without_feedback as (
    delete from feedback where workspace_id = :workspace_id
),
without_tokens as (
    delete from feedback_tokens where workspace_id = :workspace_id
),
unshared as (
    delete from shared_runs where workspace_id = :workspace_id
),
without_charts as (
    delete from chart_sections where workspace_id = :workspace_id
),
unlimited as (
    delete from usage_limits where workspace_id = :workspace_id
),
without_prices as (
    delete from model_prices where workspace_id = :workspace_id
),
without_models as (
    delete from models where workspace_id = :workspace_id
),
without_recomputations as (
    delete from cost_recomputations where workspace_id = :workspace_id
)
update projects set deleted_at = now() where workspace_id = :workspace_id and deleted_at is null

-- name: scan_end
-- The last trace of a scan that begins after the given one; no row if fewer are left.
select workspace_id, trace_id from traces
where (workspace_id, trace_id) > (:after_workspace::uuid, :after_trace::uuid)
order by workspace_id, trace_id
offset :traces::int limit 1

-- name: late_traces
-- Expired traces that have runs: those runs arrived after the deletion.
select t.workspace_id, t.trace_id from traces t
where (t.workspace_id, t.trace_id) > (:after_workspace::uuid, :after_trace::uuid)
  and (t.workspace_id, t.trace_id) <= (:until_workspace::uuid, :until_trace::uuid)
  and t.expired_at is not null
  and exists (select from runs r where r.workspace_id = t.workspace_id and coalesce(r.trace_id, r.id) = t.trace_id)
order by t.workspace_id, t.trace_id
limit :batch::int
for update of t skip locked

-- name: delete_stray_runs
-- Deletes runs without a trace, which belong to no tier: patches of runs that were never posted or are deleted, and runs
-- whose parent never arrived. They are found by the partial index of runs without a dotted order.
with deleted as (
    delete from runs where (workspace_id, id) in (
        select workspace_id, id from runs
        where dotted_order is null and trace_id is null
          and received_at < case when name is null then :nameless_before::timestamptz else :named_before::timestamptz end
        order by workspace_id, id
        limit :batch::int
        for update skip locked
    )
    returning workspace_id, id
)
select count(*), delete_rows_of_runs(array_agg(workspace_id), array_agg(id)) from deleted

-- name: delete_orphaned_feedback
-- Deletes feedback on runs that are not there. No trace is kept as long as orphans are, so few other rows are as old, and
-- the index by receipt finds the orphans. Feedback on a project has no run.
with deleted as (
    delete from feedback where (workspace_id, id) in (
        select f.workspace_id, f.id from feedback f
        where f.run_id is not null and f.received_at < :before
          and not exists (select from runs r where r.workspace_id = f.workspace_id and r.id = f.run_id)
        order by f.received_at
        limit :batch::int
        for update of f skip locked
    )
    returning 1
)
select count(*) from deleted

-- name: delete_orphaned_attachments
-- As for feedback.
with deleted as (
    delete from attachments where (workspace_id, run_id, name) in (
        select a.workspace_id, a.run_id, a.name from attachments a
        where a.received_at < :before
          and not exists (select from runs r where r.workspace_id = a.workspace_id and r.id = a.run_id)
        order by a.received_at
        limit :batch::int
        for update of a skip locked
    )
    returning 1
)
select count(*) from deleted
