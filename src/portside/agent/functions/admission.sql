-- Admitting runs.

-- The number of pending runs of a caller, counted up to a bound.
create or replace function count_pending(p_caller text, p_limit int) returns int
-- Postgres plans this once for a connection, maybe while the table is empty.
language sql stable set search_path from current set enable_seqscan = off
as $$
    select count(*)::int from (
        select from runs r where r.status = 'pending' and r.caller = p_caller limit p_limit
    ) pending
$$;

-- Admit a run under its thread's lock. `p_admission` is an `Admission` of `queue/types.py`. Returns its status as
-- `pending` or `running`; `busy` when the strategy is `reject` and the thread has a run; `missing` when there is no such
-- thread and none may be created, when it belonged to a stateless run and will be deleted, or when it does not match the
-- access filter. With `starts`, the run starts under the
-- worker's lease at once if no other run is before it. The strategies `interrupt` and `rollback` cancel every run before it
-- in the same transaction; the new run is blocked until those that had begun have stopped.
--
-- `repeated` when the idempotency key was used before: the result is the first run. `reused` when it was used for another
-- request. On a thread, the thread's lock decides which request was first; without a thread, the unique index does.
--
-- Without `p_wait`, a run on a thread that another transaction has locked is `locked`, and not admitted. The outcome is null
-- when the assistant has changed since the worker read it.
--
-- The run's metadata is merged from its assistant's, its thread's and its own, the last one winning. A new thread is
-- written once, already busy with its run; where `new_thread` is given, it is created with that metadata and its creator may
-- run on it.
create or replace function admit_run(
    p_admission jsonb, p_access jsonb, p_worker_id uuid, p_lease interval, p_wait boolean
) returns table (
    outcome text, attempt int, created_at timestamptz, run_id uuid, thread_id uuid, metadata jsonb
)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
    nil constant uuid := '00000000-0000-0000-0000-000000000000';
    a record;
    ahead int;  -- runs of the thread that are not over
    labels jsonb;
    starts boolean;
    new_position timestamptz;
    moment timestamptz;
    delay interval;
    known runs;
    is_new boolean := false;
    is_creator boolean := false;
    is_visible boolean;
begin
    select * into a from jsonb_to_record(p_admission) as (
        run_id uuid, thread_id uuid, assistant_id uuid, assistant_updated_at timestamptz, inherited jsonb, metadata jsonb,
        kwargs jsonb, strategy text, priority int, thread_metadata jsonb, thread_config jsonb, new_thread jsonb,
        create_thread boolean, temporary boolean, delay_s float8, key_scope uuid, key text, key_index int, digest text,
        caller text, starts boolean, is_awaited boolean, is_streamed boolean
    );
    attempt := 0;
    created_at := now();
    run_id := a.run_id;
    thread_id := a.thread_id;
    metadata := '{}';
    if a.assistant_updated_at is not null and not exists (
        select from assistants k where k.assistant_id = a.assistant_id and k.updated_at = a.assistant_updated_at
    ) then
        return next;
        return;
    end if;
    if not p_wait and not a.create_thread then
        perform from threads t where t.thread_id = a.thread_id for update skip locked;
        if not found and exists (select from threads t where t.thread_id = a.thread_id) then
            outcome := 'locked';
            return next;
            return;
        end if;
    end if;
    if a.new_thread is not null then
        insert into threads (thread_id, metadata) values (a.thread_id, a.new_thread) on conflict do nothing;
        is_creator := found;
    end if;
    if a.key_scope = nil then
        select r.* into known from runs r
        where r.key_scope = a.key_scope and r.request_key = a.key and r.key_index = a.key_index
            and r.created_at > now() - run_key_lifetime();
    end if;
    if known.run_id is null then
        if a.create_thread then
            insert into threads (
                thread_id, is_temporary, active_runs, status, metadata, config, ttl_minutes, ttl_strategy
            ) values (
                a.thread_id, a.temporary, 1, 'busy', a.thread_metadata, a.thread_config,
                case when not a.temporary then (select ttl_minutes from thread_lifetime) end,
                case when a.temporary then 'delete' else (select strategy from thread_lifetime) end
            ) on conflict do nothing;
            is_new := found;
        end if;
        if is_new then
            ahead := 0;
            labels := '{}';
        else
            -- Under the lock: another caller may have created the thread a moment ago.
            select t.active_runs, t.metadata - '{graph_id,assistant_id}'::text[],
                is_creator or matches_access(t.metadata, p_access)
            into ahead, labels, is_visible
            from threads t where t.thread_id = a.thread_id and t.delete_after is null for update;
            if not found or not is_visible then
                outcome := 'missing';
                return next;
                return;
            end if;
        end if;
        if a.key is not null and a.key_scope <> nil then
            select r.* into known from runs r
            where r.key_scope = a.key_scope and r.request_key = a.key and r.key_index = a.key_index
                and r.created_at > now() - run_key_lifetime();
        end if;
    end if;
    if known.run_id is not null then
        return query select case when known.request_digest = a.digest then 'repeated' else 'reused' end,
            0, known.created_at, known.run_id, known.thread_id, known.metadata;
        return;
    end if;
    if ahead > 0 and a.strategy = 'reject' then
        outcome := 'busy';
        return next;
        return;
    end if;
    if ahead > 0 and a.strategy in ('interrupt', 'rollback') then
        perform cancel_thread_runs(
            a.thread_id, null, array['pending', 'running'], a.strategy,
            format('superseded by run %s (multitask_strategy=%s)', a.run_id, a.strategy)
        );
        select t.active_runs into ahead from threads t where t.thread_id = a.thread_id;
    end if;
    if a.key is not null then
        -- The key of an expired run, which the periodic task has not removed yet.
        update runs r set request_key = null
        where r.key_scope = a.key_scope and r.request_key = a.key and r.key_index = a.key_index
            and r.created_at <= now() - run_key_lifetime();
    end if;
    labels := a.inherited || labels || a.metadata;
    if labels <> a.inherited || a.metadata then
        a.kwargs := jsonb_set(a.kwargs, '{config,metadata}', coalesce(a.kwargs #> '{config,metadata}', '{}') || labels);
    end if;
    -- Read under the lock, so that creation times agree with the order of the runs.
    moment := clock_timestamp();
    delay := make_interval(secs => a.delay_s);
    starts := a.starts and ahead = 0 and a.delay_s <= 0;
    -- A delayed run gets its final position when it is due (`claim_runs`).
    new_position := case
        when starts or a.delay_s > 0 then greatest(moment, now() + delay) + a.priority * interval '1 minute'
        else next_queue_position(a.caller, a.priority, moment)
    end;
    insert into runs (
        run_id, thread_id, assistant_id, status, is_blocked, is_delayed, is_temporary, metadata, kwargs,
        multitask_strategy, attempt, admitted_by, is_streamed, worker_id, leased_until, run_after, queue_position, started_at, created_at,
        updated_at, key_scope, request_key, key_index, request_digest, caller, priority
    ) values (
        a.run_id, a.thread_id, a.assistant_id, case when starts then 'running' else 'pending' end, ahead > 0,
        a.delay_s > 0, a.temporary, labels, a.kwargs, a.strategy,
        case when starts then 1 else 0 end, case when a.is_awaited then p_worker_id end, a.is_streamed,
        case when starts then p_worker_id end, case when starts then now() + p_lease end, now() + delay,
        new_position, case when starts then moment end, moment,
        moment, case when a.key is not null then a.key_scope end, a.key, a.key_index, a.digest, a.caller, a.priority
    ) on conflict (key_scope, request_key, key_index) where request_key is not null do nothing;
    if not found then
        -- A concurrent request without a thread used the same key and was first.
        delete from threads t where t.thread_id = a.thread_id;
        return query
            select case when r.request_digest = a.digest then 'repeated' else 'reused' end,
                0, r.created_at, r.run_id, r.thread_id, r.metadata
            from runs r where r.key_scope = a.key_scope and r.request_key = a.key and r.key_index = a.key_index;
        return;
    end if;
    if not is_new then
        update threads t set
            active_runs = t.active_runs + 1, status = 'busy', updated_at = now(),
            idle_status = case when t.active_runs = 0 then t.status else t.idle_status end,
            metadata = t.metadata || a.thread_metadata, config = a.thread_config
        where t.thread_id = a.thread_id;
    end if;
    outcome := case when starts then 'running' else 'pending' end;
    attempt := case when starts then 1 else 0 end;
    created_at := moment;
    metadata := labels;
    return next;
end $$;

-- Admit several runs in one statement: all are admitted or none. `batch_index` is the index in the list, and the access
-- filters have the same order. Threads are locked in the order of their ids where the batch does not wait for them.
create or replace function admit_runs(
    p_admissions jsonb, p_access_filters text[], p_worker_id uuid, p_lease interval, p_wait boolean
) returns table (
    batch_index int, outcome text, attempt int, created_at timestamptz, run_id uuid, thread_id uuid, metadata jsonb
)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
    n record;
begin
    for n in
        select e.admission, e.batch_index::int as batch_index
        from jsonb_array_elements(p_admissions) with ordinality as e (admission, batch_index)
        order by case when not p_wait then (e.admission ->> 'thread_id')::uuid end, e.batch_index
    loop
        return query select n.batch_index, a.* from admit_run(
            n.admission, p_access_filters[n.batch_index]::jsonb, p_worker_id, p_lease, p_wait
        ) a;
    end loop;
end $$;
