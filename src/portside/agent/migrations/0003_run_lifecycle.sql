-- The moves of a run that touch its thread as well. They are functions so that each is one round trip, and so that each
-- statement inside sees what was committed before the thread's lock was granted.

-- Admit a run under its thread's lock. Returns its status as `pending` or `running`; `busy` when the strategy is
-- `reject` and the thread has a run; `missing` when there is no such thread and none may be made. With a worker the run
-- starts under that worker's lease at once if nothing is before it.
create function admit_run(
    p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_metadata jsonb, p_kwargs jsonb, p_strategy text,
    p_thread_metadata jsonb, p_create_thread boolean, p_temporary boolean, p_delay interval,
    p_admitted_by uuid, p_worker_id uuid, p_lease interval
) returns table (outcome text, attempt int, created_at timestamptz)
language plpgsql as $$
declare
    ahead int;
    starts boolean;
    moment timestamptz;
begin
    if p_create_thread then
        insert into threads (thread_id) values (p_thread_id) on conflict do nothing;
    end if;
    select t.active_runs into ahead from threads t where t.thread_id = p_thread_id for update;
    if not found then
        return query select 'missing', 0, now();
        return;
    end if;
    if ahead > 0 and p_strategy = 'reject' then
        return query select 'busy', 0, now();
        return;
    end if;
    -- Taken under the lock, so that the runs of a thread are as old as their order says.
    moment := clock_timestamp();
    starts := ahead = 0 and p_worker_id is not null and p_delay <= interval '0';
    update threads t set
        active_runs = t.active_runs + 1, status = 'busy', updated_at = now(),
        metadata = t.metadata || p_thread_metadata
    where t.thread_id = p_thread_id;
    insert into runs (
        run_id, thread_id, assistant_id, status, is_blocked, is_temporary, metadata, kwargs, multitask_strategy,
        attempt, admitted_by, worker_id, leased_until, run_after, created_at, updated_at
    ) values (
        p_run_id, p_thread_id, p_assistant_id, case when starts then 'running' else 'pending' end, ahead > 0,
        p_temporary, p_metadata, p_kwargs, p_strategy,
        case when starts then 1 else 0 end, p_admitted_by, case when starts then p_worker_id end,
        case when starts then now() + p_lease end, now() + p_delay, moment, moment
    );
    return query select case when starts then 'running' else 'pending' end, case when starts then 1 else 0 end, moment;
end $$;

-- Take a run off its thread: count it out, give the thread its new state and make the next run ready.
-- The caller has ended or deleted the run in the same transaction.
create function leave_thread(
    p_thread_id uuid, p_status text, p_values jsonb, p_interrupts jsonb, p_error jsonb
) returns void
language plpgsql as $$
declare
    remaining int;
begin
    update threads t set
        active_runs = t.active_runs - 1,
        status = case when t.active_runs > 1 then 'busy' else p_status end,
        "values" = coalesce(p_values, t."values"),
        interrupts = coalesce(p_interrupts, t.interrupts),
        error = p_error,
        updated_at = now(),
        state_updated_at = now()
    where t.thread_id = p_thread_id
    returning t.active_runs into remaining;
    if remaining > 0 then
        update runs r set is_blocked = false
        where r.run_id = (
            select n.run_id from runs n
            where n.thread_id = p_thread_id and n.status = 'pending' and n.is_blocked
            order by n.number limit 1
        );
    end if;
end $$;

-- End a run that this worker still owns. Returns false when the lease went to somebody else: that owner's word counts.
-- The thread of a stateless run goes with it. Where another process admitted the run, or it was begun again, a client
-- that waits reads the result from the thread, so that stays for a minute.
create function finish_run(
    p_run_id uuid, p_worker_id uuid, p_attempt int, p_status text,
    p_thread_status text, p_values jsonb, p_interrupts jsonb, p_error jsonb
) returns boolean
language plpgsql as $$
declare
    ended runs;
begin
    update runs r set
        status = p_status, worker_id = null, leased_until = null, error = p_error, updated_at = now()
    where r.run_id = p_run_id and r.status = 'running' and r.worker_id = p_worker_id and r.attempt = p_attempt
    returning r.* into ended;
    if not found then
        return false;
    end if;
    if ended.is_temporary and ended.admitted_by = p_worker_id and ended.attempt = 1 then
        delete from threads t where t.thread_id = ended.thread_id;
        return true;
    end if;
    perform leave_thread(ended.thread_id, p_thread_status, p_values, p_interrupts, p_error);
    if ended.is_temporary then
        update threads t set delete_after = now() + interval '1 minute' where t.thread_id = ended.thread_id;
    end if;
    return true;
end $$;

-- Give back runs whose lease ran out; one that was tried often enough ends in an error instead.
create function release_expired_runs(p_limit int, p_max_attempts int) returns table (run_id uuid, outcome text)
language plpgsql as $$
declare
    expired runs;
    reason jsonb;
begin
    for expired in
        select r.* from runs r where r.status = 'running' and r.leased_until < now()
        order by r.leased_until limit p_limit for update skip locked
    loop
        if expired.attempt < p_max_attempts then
            update runs r set status = 'pending', worker_id = null, leased_until = null where r.run_id = expired.run_id;
            return query select expired.run_id, 'released';
        else
            reason := jsonb_build_object(
                'error', 'WorkerLost',
                'message', format('the worker was lost %s times while executing this run', expired.attempt)
            );
            update runs r set
                status = 'error', worker_id = null, leased_until = null, error = reason, updated_at = now()
            where r.run_id = expired.run_id;
            perform leave_thread(expired.thread_id, 'error', null, null, reason);
            update threads t set delete_after = now() + interval '1 minute'
            where t.thread_id = expired.thread_id and expired.is_temporary;
            return query select expired.run_id, 'failed';
        end if;
    end loop;
end $$;

-- What a thread remembers goes with it, whoever deletes the thread.
create function forget_thread() returns trigger
language plpgsql as $$
begin
    delete from checkpoint_writes where thread_id = old.thread_id::text;
    delete from checkpoint_values where thread_id = old.thread_id::text;
    delete from checkpoints where thread_id = old.thread_id::text;
    return old;
end $$;

create trigger threads_are_forgotten after delete on threads for each row execute function forget_thread();
