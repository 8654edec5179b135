-- What a deleted thread remembered, as before, in one statement.
create or replace function forget_thread() returns trigger language plpgsql as $$
begin
    with writes as (
        delete from checkpoint_writes where thread_id = old.thread_id::text
    ), "values" as (
        delete from checkpoint_values where thread_id = old.thread_id::text
    )
    delete from checkpoints where thread_id = old.thread_id::text;
    return old;
end $$;

-- End a run that this worker still owns, as before; one that passes goes before its thread, so that no key has to look for it.
create or replace function end_run(
    p_run_id uuid, p_thread_id uuid, p_worker_id uuid, p_attempt int, p_status text,
    p_thread_status text, p_values jsonb, p_interrupts jsonb, p_error jsonb
) returns text
language plpgsql as $$
declare
    before record;
    ended runs;
begin
    select t.resting_status, t.error into before from threads t where t.thread_id = p_thread_id for update;
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
        or (
            ended.admitted_by = p_worker_id and ended.attempt = 1
            and ended.request_key is null and ended.webhook is null
        )
    ) then
        delete from runs r where r.run_id = p_run_id;
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

-- End several runs of one worker in the order of their threads, then claim some for the slots that this leaves, if a thread
-- of theirs has other runs or the worker asks to look. Where it does not wait, a run whose thread somebody else has locked is
-- `locked` and stays as it is, so that nobody's end waits for a stranger's thread. `has_next` is looked at while the thread of
-- a run that has ended is still locked: nobody is admitted in between. Rows of claimed runs have no place.
create function end_runs(
    p_worker_id uuid, p_run_ids uuid[], p_thread_ids uuid[], p_attempts int[], p_statuses text[],
    p_thread_statuses text[], p_values text[], p_interrupts text[], p_errors text[], p_waits boolean, p_lease interval,
    p_claims int, p_looks boolean
) returns table (
    place int, outcome text, has_next boolean, run_id uuid, thread_id uuid, assistant_id uuid, kwargs jsonb, attempt int,
    is_temporary boolean, was_begun boolean, cancel_action text, cancel_reason text, waited_s float8, is_foreign boolean
)
language plpgsql as $$
#variable_conflict use_column
declare
    e record;
begin
    for e in
        select n.* from unnest(
            p_run_ids, p_thread_ids, p_attempts, p_statuses, p_thread_statuses, p_values, p_interrupts, p_errors
        ) with ordinality as n (run_id, thread_id, attempt, status, thread_status, "values", interrupts, error, place)
        order by n.thread_id
    loop
        place := e.place;
        outcome := null;
        if not p_waits then
            perform from threads t where t.thread_id = e.thread_id for update skip locked;
            if not found and exists (select from threads t where t.thread_id = e.thread_id) then
                outcome := 'locked';
            end if;
        end if;
        outcome := coalesce(outcome, end_run(
            e.run_id, e.thread_id, p_worker_id, e.attempt, e.status, e.thread_status, e."values"::jsonb,
            e.interrupts::jsonb, e.error::jsonb
        ));
        has_next := outcome = 'ended' and has_runs(e.thread_id);
        p_looks := p_looks or has_next;
        return next;
    end loop;
    if p_looks and p_claims > 0 then
        return query select null::int, 'claimed', false, c.* from claim_runs(p_worker_id, p_lease, p_claims) c;
    end if;
end $$;

-- Admit several runs as `admit_run` does, each with where it stands in the list. Those that are to start do, under the
-- worker's lease; the others wait for one. Where it does not wait, a run on a thread that somebody else has locked is
-- `locked`, and not admitted. Without an outcome it is of an assistant that is not as it was seen.
create function admit_runs(p_admissions jsonb, p_worker_id uuid, p_lease interval, p_waits boolean) returns table (
    place int, outcome text, attempt int, created_at timestamptz, run_id uuid, thread_id uuid, metadata jsonb
)
language plpgsql as $$
#variable_conflict use_column
declare
    n record;
    seen jsonb;
begin
    for n in
        select * from rows from (jsonb_to_recordset(p_admissions) as (
            run_id uuid, thread_id uuid, assistant_id uuid, inherited jsonb, metadata jsonb, kwargs jsonb, strategy text,
            priority int, thread_metadata jsonb, thread_config jsonb, create_thread boolean, temporary boolean,
            delay_s float8, key_scope uuid, key text, key_place int, digest text, seen timestamptz, asked_by text,
            access jsonb, starts boolean, is_awaited boolean
        )) with ordinality as n (
            run_id, thread_id, assistant_id, inherited, metadata, kwargs, strategy, priority, thread_metadata,
            thread_config, create_thread, temporary, delay_s, key_scope, key, key_place, digest, seen, asked_by, access,
            starts, is_awaited, place
        )
        order by case when not p_waits then n.thread_id end, n.place
    loop
        place := n.place;
        outcome := null;
        run_id := n.run_id;
        thread_id := n.thread_id;
        if n.seen is not null and not exists (
            select from assistants k where k.assistant_id = n.assistant_id and k.updated_at = n.seen
        ) then
            return next;
            continue;
        end if;
        if not p_waits and not n.create_thread then
            select t.metadata into seen from threads t where t.thread_id = n.thread_id for update skip locked;
            outcome := case
                when found and not fits(seen, n.access) then 'missing'
                when not found and exists (select from threads t where t.thread_id = n.thread_id) then 'locked'
            end;
            if outcome is not null then
                return next;
                continue;
            end if;
        end if;
        return query select n.place::int, a.* from admit_run(
            n.run_id, n.thread_id, n.assistant_id, n.inherited, n.metadata, n.kwargs, n.strategy, n.priority,
            n.thread_metadata, n.thread_config, n.create_thread, n.temporary, make_interval(secs => n.delay_s),
            n.key_scope, n.key, n.key_place, n.digest, case when n.is_awaited then p_worker_id end,
            case when n.starts then p_worker_id end, p_lease, n.asked_by
        ) a;
    end loop;
end $$;
