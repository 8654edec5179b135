-- name: merge_runs
-- Requests may arrive twice and in any order. The position of a run (trace, parent, project) is set once and never
-- moves. Every other field has a bit in `patched`: a patch outweighs a post, and of two patches the later end time wins.
-- `merge_repeated` in run_merge.py is the same rule for writes within one batch.
-- Rows are written in the order of their ids, and traces after all runs, so overlapping batches wait for each other and do
-- not deadlock. A column that is null for every run is sent as null instead of an array.
with written as (
    insert into runs as r (
        workspace_id, id, trace_id, parent_run_id, dotted_order, project_id, reference_example_id, name, run_type,
        start_time, end_time, tags, error, inputs, outputs, extra, events, serialized, patched, patch_order, is_awaited
    )
    select
        :workspace_id, x.id, x.trace_id, x.parent_run_id, x.dotted_order, x.project_id, x.reference_example_id,
        x.name, x.run_type, x.start_time, x.end_time,
        case when x.tags is not null then array(select json_array_elements_text(x.tags::json)) end,
        x.error, x.inputs, x.outputs, x.extra, x.events, x.serialized, x.patched, x.patch_order, x.is_awaited
    from unnest(
        :id::uuid[], :trace_id::uuid[], :parent_run_id::uuid[], :dotted_order::text[], :project_id::uuid[],
        :reference_example_id::uuid[], :name::text[], :run_type::text[], :start_time::timestamptz[],
        :end_time::timestamptz[], :tags::text[], :error::text[], :inputs::text[], :outputs::text[], :extra::text[],
        :events::text[], :serialized::text[], :patched::int[], :patch_order::float8[], :is_awaited::boolean[]
    ) as x (
        id, trace_id, parent_run_id, dotted_order, project_id, reference_example_id, name, run_type, start_time,
        end_time, tags, error, inputs, outputs, extra, events, serialized, patched, patch_order, is_awaited
    )
    order by x.id
    on conflict (workspace_id, id) do update set
        trace_id = coalesce(r.trace_id, excluded.trace_id),
        parent_run_id = coalesce(r.parent_run_id, excluded.parent_run_id),
        dotted_order = coalesce(r.dotted_order, excluded.dotted_order),
        project_id = coalesce(r.project_id, excluded.project_id),
        reference_example_id = coalesce(r.reference_example_id, excluded.reference_example_id),
        name = merge_field(r.name, excluded.name,
            (r.patched & 1, r.patch_order) > (excluded.patched & 1, excluded.patch_order)),
        run_type = merge_field(r.run_type, excluded.run_type,
            (r.patched & 2, r.patch_order) > (excluded.patched & 2, excluded.patch_order)),
        start_time = merge_field(r.start_time, excluded.start_time,
            (r.patched & 4, r.patch_order) > (excluded.patched & 4, excluded.patch_order)),
        end_time = merge_field(r.end_time, excluded.end_time,
            (r.patched & 8, r.patch_order) > (excluded.patched & 8, excluded.patch_order)),
        tags = merge_field(r.tags, excluded.tags,
            (r.patched & 16, r.patch_order) > (excluded.patched & 16, excluded.patch_order)),
        error = merge_field(r.error, excluded.error,
            (r.patched & 32, r.patch_order) > (excluded.patched & 32, excluded.patch_order)),
        inputs = merge_field(r.inputs, excluded.inputs,
            (r.patched & 64, r.patch_order) > (excluded.patched & 64, excluded.patch_order)),
        outputs = merge_field(r.outputs, excluded.outputs,
            (r.patched & 128, r.patch_order) > (excluded.patched & 128, excluded.patch_order)),
        extra = merge_field(r.extra, excluded.extra,
            (r.patched & 256, r.patch_order) > (excluded.patched & 256, excluded.patch_order)),
        events = merge_field(r.events, excluded.events,
            (r.patched & 512, r.patch_order) > (excluded.patched & 512, excluded.patch_order)),
        serialized = merge_field(r.serialized, excluded.serialized,
            (r.patched & 1024, r.patch_order) > (excluded.patched & 1024, excluded.patch_order)),
        patched = r.patched | excluded.patched,
        patch_order = greatest(r.patch_order, excluded.patch_order),
        is_awaited = r.is_awaited or excluded.is_awaited
    returning r.id, r.trace_id, r.project_id, r.is_awaited
)
select array_agg(w.id) filter (where w.is_awaited) as awaited,
       count_traces(
           :workspace_id, :api_key_id::uuid, :user_id::uuid, :tier::text,
           array_agg(w.id), array_agg(w.trace_id), array_agg(w.project_id), :imported::boolean
       )
from written w

-- name: sizes_of_runs
-- The size of all text fields of runs, including what this transaction has written.
select id, run_bytes(array['inputs', 'outputs', 'extra', 'events', 'serialized'], tags, error, inputs, outputs, extra, events, serialized)
    as bytes
from runs where workspace_id = :workspace_id and id = any(:ids::uuid[])

-- name: count_copied_traces
-- For runs that COPY inserted.
select count_traces(
    :workspace_id, :api_key_id::uuid, :user_id::uuid, :tier::text, :id::uuid[], :trace_id::uuid[], :project_id::uuid[],
    :imported::boolean
)

-- name: place_children
-- Sets the trace and dotted order of runs that arrived without them, below the given parents and on down. It runs after
-- the batch is committed and locks rows in the order of their ids, so it never holds rows of one batch while it waits for
-- another. It returns the placed runs that other runs wait for: a child that this statement could not see may have been
-- committed meanwhile. Chains that are too long for a dotted order stay without one. A child belongs to the trace of its
-- parent, also where it named another: a span knows only the trace of OpenTelemetry.
-- The planner knows nothing of a new workspace. If it were told the workspace, or looked for runs without a dotted order, it
-- would expect one such run, and compare each of them with each found one. Without both it looks each found one up.
with recursive found as (
    select :workspace_id::uuid as workspace_id, c.id, coalesce(p.trace_id, c.trace_id) as trace_id,
           p.dotted_order || '.' || dotted_order_part(c.start_time, c.received_at, c.id) as dotted_order
    from runs p
    cross join lateral (
        -- `offset 0` forces a lookup of each parent's children; otherwise the planner may join all parents with all waiting runs.
        select id, trace_id, start_time, received_at from runs
        where workspace_id = :workspace_id and parent_run_id = p.id and dotted_order is null and name is not null
        offset 0
    ) c
    where p.workspace_id = :workspace_id and p.id = any(:ids::uuid[]) and length(p.dotted_order) < 20000
    union all
    select f.workspace_id, c.id, coalesce(f.trace_id, c.trace_id),
           f.dotted_order || '.' || dotted_order_part(c.start_time, c.received_at, c.id)
    from found f
    cross join lateral (
        select id, trace_id, start_time, received_at from runs
        where workspace_id = :workspace_id and parent_run_id = f.id and dotted_order is null and name is not null
        offset 0
    ) c
    where length(f.dotted_order) < 20000
),
locked as (
    select r.workspace_id, r.id, f.trace_id, f.dotted_order
    from found f join runs r on r.workspace_id = f.workspace_id and r.id = f.id
    order by r.id
    for update of r
)
update runs r set trace_id = l.trace_id, dotted_order = l.dotted_order
from locked l
where r.workspace_id = l.workspace_id and r.id = l.id and coalesce(r.dotted_order, '') = ''
returning r.id, r.is_awaited

-- name: runs_of_spans
-- The runs that the parents of waiting spans became: as the row of the derived id says, or a run of the same trace whose id
-- begins with the span id.
select s.alias_id, r.parent_run_id as run_id
from unnest(:alias_ids::uuid[]) as s (alias_id)
join runs r on r.workspace_id = :workspace_id and r.id = s.alias_id and r.name is null and r.parent_run_id is not null
union
select s.alias_id, r.id
from unnest(:alias_ids::uuid[], :trace_ids::uuid[], :first_ids::uuid[], :last_ids::uuid[])
    as s (alias_id, trace_id, first_id, last_id)
cross join lateral (
    -- `offset 0` forces a lookup of each span's ids.
    select id from runs
    where workspace_id = :workspace_id and id between s.first_id and s.last_id and id <> s.alias_id
      and trace_id = s.trace_id and name is not null
    offset 0
) r

-- name: adopt_spans
-- Has spans that wait for a derived id wait for the run that it stands for. The run is marked as awaited, which waits for
-- whoever is placing it, so that its new children are placed afterwards.
with waiting as materialized (
    select c.id, a.run_id
    from unnest(:alias_ids::uuid[], :run_ids::uuid[]) as a (alias_id, run_id)
    cross join lateral (
        -- `offset 0` forces a lookup of each id's children, as in place_children.
        select id from runs
        where workspace_id = :workspace_id and parent_run_id = a.alias_id and dotted_order is null and name is not null
        offset 0
    ) c
    where c.id <> a.run_id and a.alias_id <> a.run_id
),
locked as (
    select id from runs
    where workspace_id = :workspace_id and id in (select id from waiting union select run_id from waiting)
    order by id
    for update
),
awaited as (
    update runs r set is_awaited = true
    from (select distinct run_id from waiting) w join locked on locked.id = w.run_id
    where r.workspace_id = :workspace_id and r.id = w.run_id and not r.is_awaited
)
update runs c set parent_run_id = w.run_id
from waiting w join locked on locked.id = w.id
where c.workspace_id = :workspace_id and c.id = w.id and c.dotted_order is null
returning w.run_id

-- name: mark_interrupted_traces
-- Tells the roots of traces that one of their runs was interrupted. A root that has not arrived yet gets an empty row, as an
-- awaited parent does. It runs after the batch is committed, so that it holds no row of the batch while it waits for a root.
insert into runs as r (workspace_id, id, patched, patch_order, is_awaited, has_interrupts)
select distinct :workspace_id::uuid, c.trace_id, 0, 0, false, true
from runs c
where c.workspace_id = :workspace_id and c.id = any(:ids::uuid[]) and c.trace_id <> c.id
  and end_of_failed_run(c.error) = 'interrupted'
order by c.trace_id
on conflict (workspace_id, id) do update set has_interrupts = true where not r.has_interrupts

-- name: write_feedback
-- Feedback may arrive in any order: an older write does not replace a newer one. Sorted, so that two requests wait for each
-- other instead of deadlocking.
insert into feedback as f (workspace_id, id, run_id, trace_id, key, body, modified_at)
select :workspace_id, x.*
from unnest(:id::uuid[], :run_id::uuid[], :trace_id::uuid[], :key::text[], :body::text[], :modified_at::timestamptz[])
    as x (id, run_id, trace_id, key, body, modified_at)
order by x.id
on conflict (workspace_id, id) do update set
    run_id = excluded.run_id, trace_id = excluded.trace_id, key = excluded.key, body = excluded.body,
    modified_at = excluded.modified_at, received_at = now()
where f.modified_at <= excluded.modified_at

-- name: write_attachments
-- Sorted as for feedback. The attachment that arrives last replaces one of the same name.
insert into attachments (workspace_id, run_id, name, content_type, data)
select :workspace_id, x.*
from unnest(:run_id::uuid[], :name::text[], :content_type::text[], :data::bytea[])
    as x (run_id, name, content_type, data)
order by x.run_id, x.name
on conflict (workspace_id, run_id, name) do update set
    content_type = excluded.content_type, data = excluded.data, received_at = now()
