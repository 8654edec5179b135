-- Cancelling and deleting runs. A statement that changes a thread and its runs locks the thread first, and several threads
-- in the order of their ids: so no two statements wait for each other.

-- Cancel runs of one thread, whose lock the caller holds; without ids, all that have one of the statuses. The last run is
-- cancelled first, so that none is unblocked only to be cancelled. An interrupt does not replace an earlier rollback.
-- Returns `stopping` (the worker ends the run), `interrupted` or `deleted` for each. A run that has never begun ends at
-- once, without a worker.
create or replace function cancel_thread_runs(
    p_thread_id uuid, p_run_ids uuid[], p_statuses text[], p_action text, p_reason text
) returns table (run_id uuid, outcome text)
language plpgsql set search_path from current as $$
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
            update threads t set delete_after = thread_kept_until(target)
            where t.thread_id = p_thread_id and target.is_temporary;
            return query select target.run_id, 'interrupted';
        end if;
    end loop;
end $$;

-- Cancel runs by thread, by id or by assistant, in at most `p_limit` threads, starting after the thread `p_after`.
create or replace function cancel_runs(
    p_thread_id uuid, p_run_ids uuid[], p_assistant_id uuid, p_statuses text[], p_action text, p_reason text,
    p_after uuid, p_limit int
) returns table (thread_id uuid, run_id uuid, outcome text)
language plpgsql set search_path from current as $$
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

-- Delete a run. A run that is not over is rolled back (`stopping`, `deleted`). A run that is over is started again under
-- the calling worker's lease, which then rolls it back: so the thread's state is computed again, and no other run starts
-- meanwhile (`reopened`). `busy`: the thread has a run that is not over. `missing`: there is no such run.
create or replace function delete_run(
    p_run_id uuid, p_thread_id uuid, p_worker_id uuid, p_lease interval, p_reason text
) returns table (
    outcome text, assistant_id uuid, kwargs jsonb, attempt int, is_temporary boolean
)
language plpgsql set search_path from current as $$
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
    -- The thread's status and error come from its last run: after that run is deleted, from the one before it.
    if not exists (select from runs n where n.thread_id = p_thread_id and n.number > target.number) then
        select r.* into before from runs r
        where r.thread_id = p_thread_id and r.number < target.number order by r.number desc limit 1;
        update threads t set
            status = case when before.status in ('error', 'timeout') then 'error' else 'idle' end,
            error = case when before.status in ('error', 'timeout') then before.error end
        where t.thread_id = p_thread_id;
    end if;
    update threads t set active_runs = 1, idle_status = t.status, status = 'busy' where t.thread_id = p_thread_id;
    update runs r set
        status = 'running', attempt = r.attempt + 1, worker_id = p_worker_id, leased_until = now() + p_lease,
        started_at = coalesce(r.started_at, now()), is_blocked = false, run_after = now(),
        cancel_action = 'rollback', cancel_reason = p_reason
    where r.run_id = p_run_id
    returning r.* into target;
    return query select 'reopened', target.assistant_id, target.kwargs, target.attempt, target.is_temporary;
end $$;
