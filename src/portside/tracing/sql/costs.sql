-- name: lock_prices
-- Until the end of the transaction no other one remembers which prices match a model.
select pg_advisory_xact_lock(hashtext('portside.tracing.prices'))

-- name: prices_of_files
-- Prices from files belong to no workspace and are valid in all.
select id from model_prices where workspace_id is null

-- name: delete_prices_of_files
-- Those that the files no longer have.
delete from model_prices where workspace_id is null and not id = any(:ids::uuid[])

-- name: insert_price
insert into model_prices (
    id, workspace_id, source, name, provider, match_pattern, start_time, prompt_token_threshold, prompt_cost,
    completion_cost, prompt_cost_details, completion_cost_details
)
values (
    :id, :workspace_id::uuid, :source, :name, :provider, :match_pattern, :start_time::timestamptz,
    :prompt_token_threshold::bigint, :prompt_cost::text::numeric, :completion_cost::text::numeric, :prompt_cost_details::jsonb,
    :completion_cost_details::jsonb
)
on conflict do nothing
returning id

-- name: update_price
update model_prices set
    name = :name, provider = :provider, match_pattern = :match_pattern, start_time = :start_time::timestamptz,
    prompt_token_threshold = :prompt_token_threshold::bigint, prompt_cost = :prompt_cost::text::numeric,
    completion_cost = :completion_cost::text::numeric, prompt_cost_details = :prompt_cost_details::jsonb,
    completion_cost_details = :completion_cost_details::jsonb
where id = :id and workspace_id = :workspace_id
returning id

-- name: delete_price
delete from model_prices where id = :id and workspace_id = :workspace_id

-- name: match_models_again
-- A model keeps the prices whose patterns match its name, so that a run does not compare patterns.
update models m set prices = matching_prices(m.workspace_id, m.provider, m.name)
where (:workspace_id::uuid is null or m.workspace_id = :workspace_id::uuid)
  and m.prices is distinct from matching_prices(m.workspace_id, m.provider, m.name)

-- name: check_pattern
-- Fails for a pattern that Postgres cannot use; what it is compared with does not matter.
select 'x' ~* ('^(?:' || :pattern::text || ')$')

-- name: prices
-- Those of the workspace first, then those of files.
select id, workspace_id as tenant_id, source, name, provider, match_pattern, start_time, prompt_token_threshold,
       trim_scale(prompt_cost)::text as prompt_cost, trim_scale(completion_cost)::text as completion_cost,
       prompt_cost_details, completion_cost_details, count(*) over () as total
from model_prices
where (workspace_id is null or workspace_id = :workspace_id) and (:id::uuid is null or id = :id::uuid)
  and (:q::text is null or position(lower(:q::text) in lower(concat_ws(' ', name, provider, match_pattern))) > 0)
order by array_position(array['workspace', 'file', 'shipped'], source), name, prompt_token_threshold nulls first, id
offset :offset::int limit :limit::int

-- name: models_in_use
-- Models that runs of the period named, and the models of earlier runs. Those with runs that have no cost come first.
with used as (
    select coalesce(u.model_provider, '') as provider, u.model_name as name, sum(u.runs)::bigint as runs,
           least(sum(u.prompt_tokens), 9e18)::bigint as prompt_tokens,
           least(sum(u.completion_tokens), 9e18)::bigint as completion_tokens,
           trim_scale(sum(u.total_cost))::text as total_cost, sum(u.unpriced_runs)::bigint as unpriced_runs
    from usage_between(array[:workspace_id::uuid], :start_time, :first_day, :last_day, :end_time) u
    where u.model_name is not null
    group by 1, 2
)
select coalesce(m.provider, u.provider) as provider, coalesce(m.name, u.name) as name, m.first_seen_at,
       coalesce(u.runs, 0) as runs, coalesce(u.prompt_tokens, 0) as prompt_tokens,
       coalesce(u.completion_tokens, 0) as completion_tokens, u.total_cost,
       coalesce(u.unpriced_runs, 0) as unpriced_runs, p.id as price_id, p.name as price_name
from (select * from models where workspace_id = :workspace_id) m
full join used u on u.provider = m.provider and u.name = m.name
left join lateral (
    select p.id, p.name
    from unnest(m.prices) with ordinality as x (id, place)
    join model_prices p on p.id = x.id
    where p.start_time is null or p.start_time <= now()
    order by p.prompt_token_threshold is not null, x.place
    limit 1
) p on true
order by p.id is not null, coalesce(u.unpriced_runs, 0) desc, coalesce(u.runs, 0) desc, 2, 1
limit :limit::int

-- name: create_recomputation
-- The period is narrowed to the runs that there are, so that the progress by time means something.
insert into cost_recomputations (
    id, workspace_id, project_id, start_time, end_time, reached_time, reached_id
)
select :id, :workspace_id, :project_id::uuid, x.began, x.ended, x.began, '00000000-0000-0000-0000-000000000000'
from (
    select coalesce(greatest(f.began, :start_time::timestamptz), :end_time::timestamptz) as began,
           :end_time::timestamptz as ended
    from (
        select coalesce(r.start_time, r.received_at) as began
        from runs r
        where r.workspace_id = :workspace_id and (:project_id::uuid is null or r.project_id = :project_id::uuid)
          and coalesce(r.start_time, r.received_at) >= coalesce(:start_time::timestamptz, '-infinity')
        order by 1
        limit 1
    ) f
    right join (select 1) one on true
) x

-- name: recomputations
-- Only the latest: the list shows what is going on.
select c.id, c.project_id as session_id, p.name as session_name, c.start_time, c.end_time, c.reached_time, c.runs,
       c.changed, c.created_at, c.finished_at, c.cancelled_at, c.error, c.retry_at
from cost_recomputations c
left join projects p on p.id = c.project_id
where c.workspace_id = :workspace_id and (:id::uuid is null or c.id = :id::uuid)
order by c.created_at desc, c.id desc
limit 20

-- name: cancel_recomputation
-- A second cancellation keeps the time of the first one.
update cost_recomputations set cancelled_at = coalesce(cancelled_at, now())
where id = :id and workspace_id = :workspace_id and finished_at is null
returning id

-- name: next_recomputation
-- The one after :last_id, in turn, without those that wait after a failure: a long one does not hold up the others.
select * from cost_recomputations
where finished_at is null and cancelled_at is null and (retry_at is null or retry_at <= now())
order by coalesce(id <= :last_id::uuid, false), id
limit 1
for update skip locked

-- name: runs_with_counts_in_metadata
-- The runs of a batch whose metadata has token counts under the names of OpenTelemetry's attributes. Rows are locked as in
-- recompute_batch.
with batch as materialized (
    select r.id, coalesce(r.start_time, r.received_at) as began, r.extra
    from runs r
    where r.workspace_id = :workspace_id and (:project_id::uuid is null or r.project_id = :project_id::uuid)
      and (coalesce(r.start_time, r.received_at), r.id) > (:reached_time::timestamptz, :reached_id::uuid)
      and coalesce(r.start_time, r.received_at) <= :end_time::timestamptz and r.run_type = 'llm'
    order by coalesce(r.start_time, r.received_at), r.id
    limit :batch::int
    for update of r
)
select id, extra from batch
where extra ~ '"(gen_ai\.usage\.|llm\.usage\.|llm\.token_count\.|ai\.usage\.|langsmith\.usage_metadata)'
  and octet_length(extra) <= 100000

-- name: replace_extras
-- The trigger computes the costs again.
update runs r set extra = x.extra
from unnest(:ids::uuid[], :extras::text[]) as x (id, extra)
where r.workspace_id = :workspace_id and r.id = x.id

-- name: recompute_batch
-- Rows are locked before they are read, so a run that is written meanwhile waits, and then keeps its own costs. `reread` are
-- runs whose costs were computed again already.
with batch as materialized (
    select r.id, coalesce(r.start_time, r.received_at) as began, r.extra, r.outputs
    from runs r
    where r.workspace_id = :workspace_id and (:project_id::uuid is null or r.project_id = :project_id::uuid)
      and (coalesce(r.start_time, r.received_at), r.id) > (:reached_time::timestamptz, :reached_id::uuid)
      and coalesce(r.start_time, r.received_at) <= :end_time::timestamptz and r.run_type = 'llm'
    order by coalesce(r.start_time, r.received_at), r.id
    limit :batch::int
    for update of r
),
computed as materialized (
    select b.id as run_id, c.*
    from batch b
    cross join lateral costs_of_run(:workspace_id, b.began, b.extra, b.outputs) c
),
changed as (
    update runs r set
        usage = c.usage, model_provider = c.model_provider, model_name = c.model_name, prompt_cost = c.prompt_cost,
        completion_cost = c.completion_cost, total_cost = c.total_cost, prompt_cost_details = c.prompt_cost_details,
        completion_cost_details = c.completion_cost_details, price_id = c.price_id
    from computed c
    where r.workspace_id = :workspace_id and r.id = c.run_id
      and (r.usage, r.model_provider, r.model_name, r.prompt_cost, r.completion_cost, r.total_cost, r.price_id,
           r.prompt_cost_details, r.completion_cost_details) is distinct from
          (c.usage, c.model_provider, c.model_name, c.prompt_cost, c.completion_cost, c.total_cost, c.price_id,
           c.prompt_cost_details, c.completion_cost_details)
    returning c.run_id
)
select count(*) as runs,
       (select count(*) from (select run_id from changed union select unnest(:reread::uuid[])) x) as changed, max(began) as reached_time,
       (array_agg(id order by began desc, id desc))[1] as reached_id
from batch

-- name: advance_recomputation
-- A batch that succeeded ends a series of failures.
update cost_recomputations set
    runs = runs + :runs::bigint, changed = changed + :changed::bigint,
    reached_time = coalesce(:reached_time::timestamptz, end_time), reached_id = coalesce(:reached_id::uuid, reached_id),
    finished_at = case when :is_finished then now() end, failures = 0, retry_at = null, error = null
where id = :id

-- name: postpone_recomputation
-- Counted, because the pause grows with the failures.
update cost_recomputations set
    failures = failures + 1, retry_at = now() + :pause_s::float8 * interval '1 s', error = :error
where id = :id and finished_at is null
