-- Runs say when it is their turn, clients may ask for the same run twice, and a run inherits what its assistant and its
-- thread are labelled with. What a replica of the last version still calls keeps its signature.

-- `turn_at` orders the claims: the moment a run asked to be executed, moved by its assistant's priority. Because it never
-- changes, claims come out of an index, and nothing starves: whoever asked long enough before goes first.
-- A run that is not due yet is kept out of that index, so that runs for tomorrow cost today's claims nothing.
-- `request_key` is the client's Idempotency-Key, unique among a thread's runs or among those made without a thread
-- (`key_scope`, which is then the nil id); `key_place` is the place in a batch, `request_digest` what was asked.
alter table runs
    add column turn_at timestamptz not null default now(),
    add column is_delayed boolean not null default false,
    add column key_scope uuid,
    add column request_key text,
    add column key_place int,
    add column request_digest text;

update runs set turn_at = greatest(created_at, run_after), is_delayed = run_after > now() where status = 'pending';

drop index runs_ready;
create index runs_ready on runs (turn_at, number) where status = 'pending' and not is_blocked and not is_delayed;
create index runs_delayed on runs (run_after) where status = 'pending' and is_delayed;
create unique index runs_by_key on runs (key_scope, request_key, key_place) where request_key is not null;
create index runs_with_keys on runs (created_at) where request_key is not null;

-- How long a key stands for the run that was made with it.
create function run_key_lifetime() returns interval
language sql immutable as $$ select interval '24 hours' $$;

-- How long the thread of a stateless run outlives it: as long as somebody may be waiting, or may ask again.
create function kept_until(p_run runs) returns timestamptz
language sql stable as $$
    select case
        when p_run.request_key is null then now() + interval '1 minute'
        else greatest(now() + interval '1 minute', p_run.created_at + run_key_lifetime())
    end
$$;

-- Admit a run under its thread's lock. Returns its status as `pending` or `running`; `busy` when the strategy is
-- `reject` and the thread has a run; `missing` when there is no such thread and none may be made. With a worker the run
-- starts under that worker's lease at once if nothing is before it. The strategies `interrupt` and `rollback` cancel
-- every run before it in the same transaction; the new one is blocked until those that were begun have stopped.
--
-- `repeated` when the key was used before: the run is the one first made; `reused` when something else was asked for
-- with it. On a thread its lock decides who was first, without one the unique index does.
--
-- The run's metadata is what it inherits from its assistant, then from its thread, then its own.
create function admit_run(
    p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_inherited jsonb, p_metadata jsonb, p_kwargs jsonb,
    p_strategy text, p_priority int, p_thread_metadata jsonb, p_thread_config jsonb, p_create_thread boolean,
    p_temporary boolean, p_delay interval, p_key_scope uuid, p_key text, p_key_place int, p_digest text,
    p_admitted_by uuid, p_worker_id uuid, p_lease interval
) returns table (
    outcome text, attempt int, created_at timestamptz, run_id uuid, thread_id uuid, metadata jsonb
)
language plpgsql as $$
#variable_conflict use_column
declare
    nil constant uuid := '00000000-0000-0000-0000-000000000000';
    ahead int;
    labels jsonb;
    starts boolean;
    moment timestamptz;
    known runs;
begin
    if p_key_scope = nil then
        select r.* into known from runs r
        where r.key_scope = p_key_scope and r.request_key = p_key and r.key_place = p_key_place
            and r.created_at > now() - run_key_lifetime();
    end if;
    if known.run_id is null then
        if p_create_thread then
            insert into threads (thread_id) values (p_thread_id) on conflict do nothing;
        end if;
        select t.active_runs, t.metadata - '{graph_id,assistant_id}'::text[] into ahead, labels
        from threads t where t.thread_id = p_thread_id for update;
        if not found then
            return query select 'missing', 0, now(), p_run_id, p_thread_id, '{}'::jsonb;
            return;
        end if;
        if p_key is not null and p_key_scope <> nil then
            select r.* into known from runs r
            where r.key_scope = p_key_scope and r.request_key = p_key and r.key_place = p_key_place
                and r.created_at > now() - run_key_lifetime();
        end if;
    end if;
    if known.run_id is not null then
        return query select case when known.request_digest = p_digest then 'repeated' else 'reused' end,
            0, known.created_at, known.run_id, known.thread_id, known.metadata;
        return;
    end if;
    if ahead > 0 and p_strategy = 'reject' then
        return query select 'busy', 0, now(), p_run_id, p_thread_id, '{}'::jsonb;
        return;
    end if;
    if ahead > 0 and p_strategy in ('interrupt', 'rollback') then
        perform cancel_thread_runs(
            p_thread_id, null, array['pending', 'running'], p_strategy,
            format('superseded by run %s (multitask_strategy=%s)', p_run_id, p_strategy)
        );
        select t.active_runs into ahead from threads t where t.thread_id = p_thread_id;
    end if;
    if p_key is not null then
        -- One whose time is over, and that the sweep has not come to.
        update runs r set request_key = null
        where r.key_scope = p_key_scope and r.request_key = p_key and r.key_place = p_key_place
            and r.created_at <= now() - run_key_lifetime();
    end if;
    labels := p_inherited || labels || p_metadata;
    if labels <> p_inherited || p_metadata then
        p_kwargs := jsonb_set(p_kwargs, '{config,metadata}', coalesce(p_kwargs #> '{config,metadata}', '{}') || labels);
    end if;
    -- Taken under the lock, so that the runs of a thread are as old as their order says.
    moment := clock_timestamp();
    starts := ahead = 0 and p_worker_id is not null and p_delay <= interval '0';
    insert into runs (
        run_id, thread_id, assistant_id, status, is_blocked, is_delayed, is_temporary, metadata, kwargs,
        multitask_strategy, attempt, admitted_by, worker_id, leased_until, run_after, turn_at, started_at, created_at,
        updated_at, key_scope, request_key, key_place, request_digest
    ) values (
        p_run_id, p_thread_id, p_assistant_id, case when starts then 'running' else 'pending' end, ahead > 0,
        p_delay > interval '0', p_temporary, labels, p_kwargs, p_strategy,
        case when starts then 1 else 0 end, p_admitted_by, case when starts then p_worker_id end,
        case when starts then now() + p_lease end, now() + p_delay,
        greatest(moment, now() + p_delay) + p_priority * interval '1 minute', case when starts then moment end, moment,
        moment, case when p_key is not null then p_key_scope end, p_key, p_key_place, p_digest
    ) on conflict (key_scope, request_key, key_place) where request_key is not null do nothing;
    if not found then
        -- The same was asked for without a thread at the same moment, and was first.
        delete from threads t where t.thread_id = p_thread_id;
        return query
            select case when r.request_digest = p_digest then 'repeated' else 'reused' end,
                0, r.created_at, r.run_id, r.thread_id, r.metadata
            from runs r where r.key_scope = p_key_scope and r.request_key = p_key and r.key_place = p_key_place;
        return;
    end if;
    update threads t set
        active_runs = t.active_runs + 1, status = 'busy', updated_at = now(),
        resting_status = case when t.active_runs = 0 then t.status else t.resting_status end,
        metadata = t.metadata || p_thread_metadata, config = p_thread_config
    where t.thread_id = p_thread_id;
    return query select case when starts then 'running' else 'pending' end, case when starts then 1 else 0 end, moment,
        p_run_id, p_thread_id, labels;
end $$;

-- Give a worker up to `p_limit` runs whose turn it is. Those whose delay is over join the others first.
create function claim_runs(p_worker_id uuid, p_lease interval, p_limit int) returns table (
    run_id uuid, thread_id uuid, assistant_id uuid, kwargs jsonb, attempt int, is_temporary boolean, was_begun boolean,
    cancel_action text, cancel_reason text, waited_s float8
)
-- The plan is made once for a connection, maybe while the table is empty.
language plpgsql set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    update runs r set is_delayed = false
    where r.run_id in (
        select d.run_id from runs d
        where d.status = 'pending' and d.is_delayed and d.run_after <= now()
        order by d.run_after limit 1000 for update skip locked
    );
    return query
        with ready as materialized (
            select n.run_id, n.started_at is not null as was_begun from runs n
            where n.status = 'pending' and not n.is_blocked and not n.is_delayed and n.run_after <= now()
            order by n.turn_at, n.number limit p_limit for update skip locked
        )
        update runs r set
            status = 'running', attempt = r.attempt + 1, worker_id = p_worker_id, updated_at = now(),
            started_at = coalesce(r.started_at, now()), leased_until = now() + p_lease
        from ready where r.run_id = ready.run_id
        returning r.run_id, r.thread_id, r.assistant_id, r.kwargs, r.attempt, r.is_temporary, ready.was_begun,
            r.cancel_action, r.cancel_reason, extract(epoch from now() - greatest(r.run_after, r.created_at))::float8;
end $$;

-- Take a run off its thread, as before; what waits for an answer is known from the first run on, if only as nothing.
create or replace function leave_thread(
    p_thread_id uuid, p_status text, p_values jsonb, p_interrupts jsonb, p_error jsonb, p_replaces boolean
) returns void
language plpgsql as $$
declare
    remaining int;
begin
    update threads t set
        active_runs = t.active_runs - 1,
        resting_status = coalesce(p_status, t.resting_status),
        status = case when t.active_runs > 1 then 'busy' else coalesce(p_status, t.resting_status) end,
        "values" = case when p_replaces then p_values else coalesce(p_values, t."values") end,
        interrupts = coalesce(p_interrupts, t.interrupts, '{}'),
        error = case
            when p_status is not null then p_error
            when t.active_runs = 1 and t.resting_status <> 'error' then coalesce(p_error, t.error)
            else t.error
        end,
        updated_at = now(),
        state_updated_at = case when p_status is null then t.state_updated_at else now() end
    where t.thread_id = p_thread_id
    returning t.active_runs into remaining;
    -- The head of the queue may be ready already: a run from the middle of it leaves as well.
    if remaining > 0 then
        update runs r set is_blocked = false
        where r.is_blocked
            and r.run_id = (
                select n.run_id from runs n
                where n.thread_id = p_thread_id and n.status = 'pending' order by n.number limit 1
            )
            and not exists (select from runs h where h.thread_id = p_thread_id and h.status = 'running');
    end if;
end $$;

-- Cancel runs of one thread, as before; a stateless run that was asked for with a key is kept as long as its key.
create or replace function cancel_thread_runs(
    p_thread_id uuid, p_run_ids uuid[], p_statuses text[], p_action text, p_reason text
) returns table (run_id uuid, outcome text)
language plpgsql as $$
declare
    target runs;
    cause jsonb := jsonb_build_object('error', 'UserInterrupt', 'message', p_reason);
begin
    for target in
        select r.* from runs r
        where r.thread_id = p_thread_id and r.status in ('pending', 'running') and r.status = any(p_statuses)
            and (p_run_ids is null or r.run_id = any(p_run_ids))
        order by r.number desc for update
    loop
        if target.status = 'running' or target.started_at is not null then
            if target.cancel_action is null or (target.cancel_action, p_action) = ('interrupt', 'rollback') then
                update runs r set cancel_action = p_action, cancel_reason = p_reason, run_after = least(r.run_after, now())
                where r.run_id = target.run_id;
            end if;
            return query select target.run_id, 'stopping';
        elsif p_action = 'rollback' then
            delete from runs r where r.run_id = target.run_id;
            perform leave_thread(p_thread_id, null, null, null, null, false);
            delete from threads t where t.thread_id = p_thread_id and target.is_temporary;
            return query select target.run_id, 'deleted';
        else
            update runs r set status = 'interrupted', cancel_reason = p_reason, error = cause, updated_at = now()
            where r.run_id = target.run_id;
            perform leave_thread(p_thread_id, null, null, null, cause, false);
            update threads t set delete_after = kept_until(target)
            where t.thread_id = p_thread_id and target.is_temporary;
            return query select target.run_id, 'interrupted';
        end if;
    end loop;
end $$;

-- Cancel runs wherever they are, or those of an assistant, a bounded number of threads at a time, from after the thread
-- `p_after` on.
create function cancel_runs(
    p_thread_id uuid, p_run_ids uuid[], p_assistant_id uuid, p_statuses text[], p_action text, p_reason text,
    p_after uuid, p_limit int
) returns table (thread_id uuid, run_id uuid, outcome text)
language plpgsql as $$
declare
    target uuid;
    chosen uuid[];
begin
    for target in
        select distinct r.thread_id from runs r
        where r.status in ('pending', 'running') and r.status = any(p_statuses)
            and (p_thread_id is null or r.thread_id = p_thread_id)
            and (p_run_ids is null or r.run_id = any(p_run_ids))
            and (p_assistant_id is null or r.assistant_id = p_assistant_id)
            and (p_after is null or r.thread_id > p_after)
        order by r.thread_id limit p_limit
    loop
        perform from threads t where t.thread_id = target for update;
        chosen := p_run_ids;
        if p_assistant_id is not null then
            chosen := array(
                select r.run_id from runs r
                where r.thread_id = target and r.status in ('pending', 'running') and r.assistant_id = p_assistant_id
            );
        end if;
        return query
            select target, c.run_id, c.outcome from cancel_thread_runs(target, chosen, p_statuses, p_action, p_reason) c;
    end loop;
end $$;

-- End a run that this worker still owns, as before; a stateless run that was asked for with a key is kept, with its
-- thread, as long as its key.
create or replace function end_run(
    p_run_id uuid, p_thread_id uuid, p_worker_id uuid, p_attempt int, p_status text,
    p_thread_status text, p_values jsonb, p_interrupts jsonb, p_error jsonb
) returns text
language plpgsql as $$
declare
    before threads;
    ended runs;
begin
    select t.* into before from threads t where t.thread_id = p_thread_id for update;
    select r.* into ended from runs r
    where r.run_id = p_run_id and r.status = 'running' and r.worker_id = p_worker_id and r.attempt = p_attempt
    for update;
    if not found then
        return 'lost';
    end if;
    if ended.cancel_action = 'rollback' and p_status <> 'rolled_back' then
        return 'rollback';
    end if;
    if ended.is_temporary and (
        p_status = 'rolled_back'
        or (ended.admitted_by = p_worker_id and ended.attempt = 1 and ended.request_key is null)
    ) then
        delete from threads t where t.thread_id = p_thread_id;
        return 'ended';
    end if;
    if p_status = 'rolled_back' then
        delete from runs r where r.run_id = p_run_id;
        if before.resting_status = 'error' then
            p_thread_status := 'error';
            p_error := before.error;
        end if;
        -- The thread is again of the graph that its last run is of.
        update threads t set metadata = t.metadata || last.own
        from (
            select jsonb_build_object(
                'assistant_id', r.assistant_id, 'graph_id', r.kwargs #>> '{config,configurable,graph_id}'
            ) as own
            from runs r where r.thread_id = p_thread_id order by r.number desc limit 1
        ) last
        where t.thread_id = p_thread_id;
    else
        update runs r set
            status = p_status, worker_id = null, leased_until = null, error = p_error, updated_at = now(),
            cancel_action = null, cancel_reason = case when p_status = 'interrupted' then r.cancel_reason end
        where r.run_id = p_run_id;
    end if;
    perform leave_thread(
        p_thread_id, p_thread_status, p_values, p_interrupts, case when p_thread_status is not null then p_error end,
        p_status = 'rolled_back'
    );
    if ended.is_temporary then
        update threads t set delete_after = kept_until(ended) where t.thread_id = p_thread_id;
    end if;
    return 'ended';
end $$;
