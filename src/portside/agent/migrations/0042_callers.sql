-- Who asked for a run, so that nobody fills the queue for all: a short name of a user or an address, null where no limit
-- holds. Only what waits is in the index. What a replica of the last version still calls keeps its signature.
alter table runs add column asked_by text;
create index runs_waiting_for on runs (asked_by) where status = 'pending' and asked_by is not null;

-- Count the runs of a caller that wait, up to a bound.
create function count_waiting(p_asked_by text, p_most int) returns int
-- The plan is made once for a connection, maybe while the table is empty.
language sql stable set enable_seqscan = off
as $$
    select count(*)::int from (
        select from runs r where r.status = 'pending' and r.asked_by = p_asked_by limit p_most
    ) waiting
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
--
-- As before; who asked is written down.
create function admit_run(
    p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_inherited jsonb, p_metadata jsonb, p_kwargs jsonb,
    p_strategy text, p_priority int, p_thread_metadata jsonb, p_thread_config jsonb, p_create_thread boolean,
    p_temporary boolean, p_delay interval, p_key_scope uuid, p_key text, p_key_place int, p_digest text,
    p_admitted_by uuid, p_worker_id uuid, p_lease interval, p_asked_by text
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
        updated_at, key_scope, request_key, key_place, request_digest, asked_by
    ) values (
        p_run_id, p_thread_id, p_assistant_id, case when starts then 'running' else 'pending' end, ahead > 0,
        p_delay > interval '0', p_temporary, labels, p_kwargs, p_strategy,
        case when starts then 1 else 0 end, p_admitted_by, case when starts then p_worker_id end,
        case when starts then now() + p_lease end, now() + p_delay,
        greatest(moment, now() + p_delay) + p_priority * interval '1 minute', case when starts then moment end, moment,
        moment, case when p_key is not null then p_key_scope end, p_key, p_key_place, p_digest, p_asked_by
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

-- For replicas of the last version, which write nobody down.
create or replace function admit_run(
    p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_inherited jsonb, p_metadata jsonb, p_kwargs jsonb,
    p_strategy text, p_priority int, p_thread_metadata jsonb, p_thread_config jsonb, p_create_thread boolean,
    p_temporary boolean, p_delay interval, p_key_scope uuid, p_key text, p_key_place int, p_digest text,
    p_admitted_by uuid, p_worker_id uuid, p_lease interval
) returns table (
    outcome text, attempt int, created_at timestamptz, run_id uuid, thread_id uuid, metadata jsonb
)
language sql as $$
    select * from admit_run(
        p_run_id, p_thread_id, p_assistant_id, p_inherited, p_metadata, p_kwargs, p_strategy, p_priority,
        p_thread_metadata, p_thread_config, p_create_thread, p_temporary, p_delay, p_key_scope, p_key, p_key_place,
        p_digest, p_admitted_by, p_worker_id, p_lease, null
    )
$$;

-- Admit a run for a caller who may not see every thread, as before; who asked is written down.
create function admit_run_for(
    p_access jsonb, p_new_thread jsonb,
    p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_inherited jsonb, p_metadata jsonb, p_kwargs jsonb,
    p_strategy text, p_priority int, p_thread_metadata jsonb, p_thread_config jsonb, p_create_thread boolean,
    p_temporary boolean, p_delay interval, p_key_scope uuid, p_key text, p_key_place int, p_digest text,
    p_admitted_by uuid, p_worker_id uuid, p_lease interval, p_asked_by text
) returns table (
    outcome text, attempt int, created_at timestamptz, run_id uuid, thread_id uuid, metadata jsonb
)
language plpgsql as $$
#variable_conflict use_column
declare
    is_new boolean := false;
    seen jsonb;
begin
    if p_new_thread is not null then
        insert into threads (thread_id, metadata) values (p_thread_id, p_new_thread) on conflict do nothing;
        is_new := found;
    end if;
    select t.metadata into seen from threads t where t.thread_id = p_thread_id for update;
    if found and not is_new and not fits(seen, p_access) then
        return query select 'missing', 0, now(), p_run_id, p_thread_id, '{}'::jsonb;
        return;
    end if;
    return query select * from admit_run(
        p_run_id, p_thread_id, p_assistant_id, p_inherited, p_metadata, p_kwargs, p_strategy, p_priority,
        p_thread_metadata, p_thread_config, p_create_thread, p_temporary, p_delay, p_key_scope, p_key, p_key_place,
        p_digest, p_admitted_by, p_worker_id, p_lease, p_asked_by
    );
end $$;

create or replace function admit_run_for(
    p_access jsonb, p_new_thread jsonb,
    p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_inherited jsonb, p_metadata jsonb, p_kwargs jsonb,
    p_strategy text, p_priority int, p_thread_metadata jsonb, p_thread_config jsonb, p_create_thread boolean,
    p_temporary boolean, p_delay interval, p_key_scope uuid, p_key text, p_key_place int, p_digest text,
    p_admitted_by uuid, p_worker_id uuid, p_lease interval
) returns table (
    outcome text, attempt int, created_at timestamptz, run_id uuid, thread_id uuid, metadata jsonb
)
language sql as $$
    select * from admit_run_for(
        p_access, p_new_thread,
        p_run_id, p_thread_id, p_assistant_id, p_inherited, p_metadata, p_kwargs, p_strategy, p_priority,
        p_thread_metadata, p_thread_config, p_create_thread, p_temporary, p_delay, p_key_scope, p_key, p_key_place,
        p_digest, p_admitted_by, p_worker_id, p_lease, null
    )
$$;
