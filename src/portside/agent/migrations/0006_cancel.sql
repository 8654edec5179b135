-- Runs can be stopped. What is asked of a run that was begun is written on its row: the worker that holds it learns of
-- it when it renews the lease, stops the graph, and only then ends the run, because what its thread looks like from then
-- on is for the graph to say. A run that was never begun is ended here at once.
--
-- Everything that touches a thread and its runs locks the thread first, and several threads in the order of their ids.
-- The functions of before that a replica of the last version still calls keep their signatures.

-- What the thread's status is when no run is active. While one is, `status` is 'busy', and a run that goes without
-- having changed anything gives this one back.
alter table threads add column resting_status text not null default 'idle'
    check (resting_status in ('idle', 'interrupted', 'error'));

-- `started_at` tells a run that may have left checkpoints from one that never began.
alter table runs
    add column cancel_action text check (cancel_action in ('interrupt', 'rollback')),
    add column cancel_reason text,
    add column started_at timestamptz;

-- A thread's next run, and what there is to cancel, without a look at all the runs that are over.
create index runs_active on runs (thread_id, number) where status in ('pending', 'running');

-- Take a run off its thread: count it out, give the thread its new state and make the next run ready. The caller holds
-- the thread's lock and has ended or deleted the run. Without a status the run changed nothing: the thread is again what
-- it was before, and only tells the error of a run that was cancelled. `p_replaces` writes the values even where there
-- are none any more.
create function leave_thread(
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
        interrupts = coalesce(p_interrupts, t.interrupts),
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

-- Cancel runs of one thread whose lock the caller holds; without ids all that have one of the statuses. The last one
-- goes first, so that none is made ready only to be cancelled. A rollback that was asked for is not taken back.
-- Returns how far each is: `stopping` (its worker ends it), `interrupted` or `deleted`.
create function cancel_thread_runs(
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
            update threads t set delete_after = now() + interval '1 minute'
            where t.thread_id = p_thread_id and target.is_temporary;
            return query select target.run_id, 'interrupted';
        end if;
    end loop;
end $$;

-- Cancel runs wherever they are, a bounded number of threads at a time, from after the thread `p_after` on.
create function cancel_runs(
    p_thread_id uuid, p_run_ids uuid[], p_statuses text[], p_action text, p_reason text, p_after uuid, p_limit int
) returns table (thread_id uuid, run_id uuid, outcome text)
language plpgsql as $$
declare
    target uuid;
begin
    for target in
        select distinct r.thread_id from runs r
        where r.status in ('pending', 'running') and r.status = any(p_statuses)
            and (p_thread_id is null or r.thread_id = p_thread_id)
            and (p_run_ids is null or r.run_id = any(p_run_ids))
            and (p_after is null or r.thread_id > p_after)
        order by r.thread_id limit p_limit
    loop
        perform from threads t where t.thread_id = target for update;
        return query
            select target, c.run_id, c.outcome from cancel_thread_runs(target, p_run_ids, p_statuses, p_action, p_reason) c;
    end loop;
end $$;

-- Delete a run. One that is not over is rolled back (`stopping`, `deleted`); one that is over is begun again under the
-- asking worker's lease, to be rolled back by it, so that its thread's state is told anew and no other run begins
-- meanwhile (`reopened`). `busy`: another run builds on what this one left. `missing`: there is no such run.
create function delete_run(
    p_run_id uuid, p_thread_id uuid, p_worker_id uuid, p_lease interval, p_reason text
) returns table (
    outcome text, assistant_id uuid, kwargs jsonb, attempt int, is_temporary boolean
)
language plpgsql as $$
declare
    active int;
    target runs;
    before runs;
    done text;
begin
    select t.active_runs into active from threads t where t.thread_id = p_thread_id for update;
    select r.* into target from runs r where r.run_id = p_run_id and r.thread_id = p_thread_id for update;
    if not found then
        return query select 'missing', null::uuid, null::jsonb, 0, false;
        return;
    end if;
    if target.status in ('pending', 'running') then
        select c.outcome into done
        from cancel_thread_runs(p_thread_id, array[p_run_id], array['pending', 'running'], 'rollback', p_reason) c;
        return query select done, null::uuid, null::jsonb, 0, false;
        return;
    end if;
    if active > 0 then
        return query select 'busy', null::uuid, null::jsonb, 0, false;
        return;
    end if;
    -- What the thread says of its last run goes with that run.
    if not exists (select from runs n where n.thread_id = p_thread_id and n.number > target.number) then
        select r.* into before from runs r
        where r.thread_id = p_thread_id and r.number < target.number order by r.number desc limit 1;
        update threads t set
            status = case when before.status in ('error', 'timeout') then 'error' else 'idle' end,
            error = case when before.status in ('error', 'timeout') then before.error end
        where t.thread_id = p_thread_id;
    end if;
    update threads t set active_runs = 1, resting_status = t.status, status = 'busy' where t.thread_id = p_thread_id;
    update runs r set
        status = 'running', attempt = r.attempt + 1, worker_id = p_worker_id, leased_until = now() + p_lease,
        started_at = coalesce(r.started_at, now()), is_blocked = false, run_after = now(),
        cancel_action = 'rollback', cancel_reason = p_reason
    where r.run_id = p_run_id
    returning r.* into target;
    return query select 'reopened', target.assistant_id, target.kwargs, target.attempt, target.is_temporary;
end $$;

-- Admit a run under its thread's lock. Returns its status as `pending` or `running`; `busy` when the strategy is
-- `reject` and the thread has a run; `missing` when there is no such thread and none may be made. With a worker the run
-- starts under that worker's lease at once if nothing is before it. The strategies `interrupt` and `rollback` cancel
-- every run before it in the same transaction; the new one is blocked until those that were begun have stopped.
create or replace function admit_run(
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
    if ahead > 0 and p_strategy in ('interrupt', 'rollback') then
        perform cancel_thread_runs(
            p_thread_id, null, array['pending', 'running'], p_strategy,
            format('superseded by run %s (multitask_strategy=%s)', p_run_id, p_strategy)
        );
        select t.active_runs into ahead from threads t where t.thread_id = p_thread_id;
    end if;
    -- Taken under the lock, so that the runs of a thread are as old as their order says.
    moment := clock_timestamp();
    starts := ahead = 0 and p_worker_id is not null and p_delay <= interval '0';
    update threads t set
        active_runs = t.active_runs + 1, status = 'busy', updated_at = now(),
        resting_status = case when t.active_runs = 0 then t.status else t.resting_status end,
        metadata = t.metadata || p_thread_metadata,
        config = (p_kwargs -> 'config') - 'metadata' || '{"configurable": {}}'
    where t.thread_id = p_thread_id;
    insert into runs (
        run_id, thread_id, assistant_id, status, is_blocked, is_temporary, metadata, kwargs, multitask_strategy,
        attempt, admitted_by, worker_id, leased_until, run_after, started_at, created_at, updated_at
    ) values (
        p_run_id, p_thread_id, p_assistant_id, case when starts then 'running' else 'pending' end, ahead > 0,
        p_temporary, p_metadata, p_kwargs, p_strategy,
        case when starts then 1 else 0 end, p_admitted_by, case when starts then p_worker_id end,
        case when starts then now() + p_lease end, now() + p_delay, case when starts then moment end, moment, moment
    );
    return query select case when starts then 'running' else 'pending' end, case when starts then 1 else 0 end, moment;
end $$;

-- End a run that this worker still owns. Returns `ended`; `lost` when the lease went to somebody else, whose word counts;
-- `rollback` when that was asked for while the run was ending otherwise, and nothing was written.
-- A run that is rolled back leaves no row; a thread that was in an error before it still is.
-- The thread of a stateless run goes with it. Where another process admitted the run, or it was begun again, a client
-- that waits reads the result from the thread, so that stays for a minute.
create function end_run(
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
    if ended.is_temporary
        and (p_status = 'rolled_back' or (ended.admitted_by = p_worker_id and ended.attempt = 1)) then
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
        update threads t set delete_after = now() + interval '1 minute' where t.thread_id = p_thread_id;
    end if;
    return 'ended';
end $$;

create or replace function finish_run(
    p_run_id uuid, p_worker_id uuid, p_attempt int, p_status text,
    p_thread_status text, p_values jsonb, p_interrupts jsonb, p_error jsonb
) returns boolean
language plpgsql as $$
begin
    return end_run(
        p_run_id, (select r.thread_id from runs r where r.run_id = p_run_id), p_worker_id, p_attempt, p_status,
        p_thread_status, p_values, p_interrupts, p_error
    ) = 'ended';
end $$;

-- Give back runs whose lease ran out; one that was tried often enough ends in an error instead. One that was to be
-- cancelled is given back as well: whoever claims it ends it without executing it. A thread that is busy with something
-- else is looked at the next time.
create or replace function release_expired_runs(p_limit int, p_max_attempts int)
returns table (run_id uuid, outcome text)
language plpgsql as $$
declare
    candidate record;
    expired runs;
    reason jsonb;
begin
    for candidate in
        select r.run_id, r.thread_id from runs r where r.status = 'running' and r.leased_until < now()
        order by r.leased_until limit p_limit
    loop
        perform from threads t where t.thread_id = candidate.thread_id for update skip locked;
        continue when not found;
        select r.* into expired from runs r
        where r.run_id = candidate.run_id and r.status = 'running' and r.leased_until < now() for update skip locked;
        continue when not found;
        if expired.attempt < p_max_attempts then
            update runs r set status = 'pending', worker_id = null, leased_until = null where r.run_id = expired.run_id;
            return query select expired.run_id, 'released';
        else
            reason := jsonb_build_object(
                'error', 'WorkerLost',
                'message', format('the worker was lost %s times while executing this run', expired.attempt)
            );
            update runs r set
                status = 'error', worker_id = null, leased_until = null, error = reason, updated_at = now(),
                cancel_action = null
            where r.run_id = expired.run_id;
            perform leave_thread(expired.thread_id, 'error', null, null, reason, false);
            update threads t set delete_after = now() + interval '1 minute'
            where t.thread_id = expired.thread_id and expired.is_temporary;
            return query select expired.run_id, 'failed';
        end if;
    end loop;
end $$;

drop function leave_thread(uuid, text, jsonb, jsonb, jsonb);
