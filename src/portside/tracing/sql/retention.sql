-- name: extend_traces
-- Feedback makes the traces of its runs long-lived, but for those that are over, which it may have waited for to go.
-- Sorted, so that two deliveries wait for each other.
with held as (
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
from held h where t.workspace_id = h.workspace_id and t.trace_id = h.trace_id

-- name: due_traces
-- Traces of a tier that were received too long ago, the oldest first: as many as have some number of runs together, and
-- one at least. Two sweepers take different ones. `found` is how many there are, of as many as were looked for.
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
-- Feedback may have come before its run: such traces are made long-lived instead of deleted.
update traces t set tier = 'longlived', extended_at = now()
from unnest(:workspace_ids::uuid[], :trace_ids::uuid[]) as d (workspace_id, trace_id)
where t.workspace_id = d.workspace_id and t.trace_id = d.trace_id and exists (
    select from runs r
    join feedback f on f.workspace_id = r.workspace_id and f.run_id = r.id
    where r.workspace_id = d.workspace_id and coalesce(r.trace_id, r.id) = d.trace_id and extends_trace(f.body)
)
returning t.workspace_id, t.trace_id

-- name: traces_of_project
select trace_id from traces
where workspace_id = :workspace_id and project_id = :project_id and trace_id = any(:trace_ids::uuid[])
  and expired_at is null

-- name: delete_traces
-- Runs and all that belongs to them; the traces stay as what was billed.
with doomed as (
    select * from unnest(:workspace_ids::uuid[], :trace_ids::uuid[]) as d (workspace_id, trace_id)
),
gone as (
    delete from runs r using doomed d
    where r.workspace_id = d.workspace_id and coalesce(r.trace_id, r.id) = d.trace_id
    returning r.workspace_id, r.id
),
without_attachments as (
    delete from attachments a using gone g where a.workspace_id = g.workspace_id and a.run_id = g.id
),
without_feedback as (
    delete from feedback f using gone g where f.workspace_id = g.workspace_id and f.run_id = g.id
),
unshared as (
    delete from shared_runs s using gone g where s.workspace_id = g.workspace_id and s.run_id = g.id
)
update traces t set expired_at = now()
from doomed d where t.workspace_id = d.workspace_id and t.trace_id = d.trace_id

-- name: empty_workspace_of_runs
with gone as (
    delete from runs where workspace_id = :workspace_id and id in (
        select id from runs where workspace_id = :workspace_id order by id limit :batch::int
    )
    returning id
)
select count(*) from gone

-- name: empty_workspace
-- What belongs to its runs and projects; the traces stay as what was billed.
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
)
update projects set deleted_at = now() where workspace_id = :workspace_id and deleted_at is null

-- name: end_of_stretch
-- Where a stretch of traces ends that begins after one of them; nothing where fewer are left.
select workspace_id, trace_id from traces
where (workspace_id, trace_id) > (:after_workspace::uuid, :after_trace::uuid)
order by workspace_id, trace_id
offset :traces::int limit 1

-- name: late_traces
-- Traces that are over and yet have runs: those were delivered late.
select t.workspace_id, t.trace_id from traces t
where (t.workspace_id, t.trace_id) > (:after_workspace::uuid, :after_trace::uuid)
  and (t.workspace_id, t.trace_id) <= (:until_workspace::uuid, :until_trace::uuid)
  and t.expired_at is not null
  and exists (select from runs r where r.workspace_id = t.workspace_id and coalesce(r.trace_id, r.id) = t.trace_id)
order by t.workspace_id, t.trace_id
limit :batch::int
for update of t skip locked

-- name: delete_stray_runs
-- Runs of no trace, which no tier speaks of: patches of runs that never came or are gone, and runs whose parent never
-- came. Their index is the small one of runs without a place.
with gone as (
    delete from runs where (workspace_id, id) in (
        select workspace_id, id from runs
        where dotted_order is null and trace_id is null
          and received_at < case when name is null then :nameless_before::timestamptz else :named_before::timestamptz end
        order by workspace_id, id
        limit :batch::int
        for update skip locked
    )
    returning workspace_id, id
),
without_attachments as (
    delete from attachments a using gone g where a.workspace_id = g.workspace_id and a.run_id = g.id
),
without_feedback as (
    delete from feedback f using gone g where f.workspace_id = g.workspace_id and f.run_id = g.id
),
unshared as (
    delete from shared_runs s using gone g where s.workspace_id = g.workspace_id and s.run_id = g.id
)
select count(*) from gone
