-- The attempt fences what a worker writes, so no two owners of a run may have the same one: it only grows, also when a run
-- is handed back. What is counted against a run are the workers that were lost while they executed it.
alter table runs add column losses int not null default 0;

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
        if expired.losses + 1 < p_max_attempts then
            update runs r set status = 'pending', worker_id = null, leased_until = null, losses = r.losses + 1
            where r.run_id = expired.run_id;
            return query select expired.run_id, 'released';
        else
            reason := jsonb_build_object(
                'error', 'WorkerLost',
                'message', format('the worker was lost %s times while executing this run', expired.losses + 1)
            );
            update runs r set
                status = 'error', worker_id = null, leased_until = null, error = reason, updated_at = now(),
                losses = r.losses + 1, cancel_action = null
            where r.run_id = expired.run_id;
            perform leave_thread(expired.thread_id, 'error', null, null, reason, false);
            update threads t set delete_after = kept_until(expired)
            where t.thread_id = expired.thread_id and expired.is_temporary;
            return query select expired.run_id, 'failed';
        end if;
    end loop;
end $$;
