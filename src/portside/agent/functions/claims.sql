-- Claiming runs, and releasing those of lost workers.

-- Give a worker up to `p_limit` runs in the order of their queue positions. A run that was handed back may have to wait for
-- up to a minute: `run_after` in more than five minutes is from before the clock was set back, and is ignored.
-- `is_streamed_elsewhere`: a client of another process follows the run from its creation, so the worker writes its events
-- to the log from the first one.
create or replace function claim_runs(p_worker_id uuid, p_lease interval, p_limit int) returns table (
    run_id uuid, thread_id uuid, assistant_id uuid, kwargs jsonb, attempt int, is_temporary boolean, was_started boolean,
    cancel_action text, cancel_reason text, waited_s float8, is_streamed_elsewhere boolean, is_suspect boolean
)
-- The plan is made once for a connection, maybe while the table is empty.
language plpgsql set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    -- Delayed runs that are due get queue positions behind their callers' pending runs, in the order in which they were due.
    if exists (select from runs d where d.status = 'pending' and d.is_delayed and d.run_after <= now()) then
        with due as materialized (
            select d.run_id, d.caller, d.priority, d.run_after, d.number from runs d
            where d.status = 'pending' and d.is_delayed and d.run_after <= now()
            order by d.run_after limit 1000 for update skip locked
        ), placed as (
            select d.run_id, d.caller, d.priority, row_number() over (
                partition by d.caller, d.priority order by d.run_after, d.number
            ) - 1 as behind
            from due d
        ), firsts as materialized (
            select d.caller, d.priority, next_queue_position(d.caller, d.priority, min(d.run_after)) as queue_position
            from due d where d.caller is not null group by d.caller, d.priority
        )
        update runs r set is_delayed = false, queue_position = coalesce(f.queue_position + p.behind * queue_spacing(), r.queue_position)
        from placed p left join firsts f on f.caller = p.caller and f.priority = p.priority
        where r.run_id = p.run_id;
    end if;
    return query
        with ready as materialized (
            select n.run_id, n.started_at is not null as was_started from runs n
            where n.status = 'pending' and not n.is_blocked and not n.is_delayed
                and (n.run_after <= now() or n.run_after > now() + interval '5 minutes')
            order by n.queue_position, n.number limit p_limit for update skip locked
        )
        update runs r set
            status = 'running', attempt = r.attempt + 1, worker_id = p_worker_id, updated_at = now(),
            started_at = coalesce(r.started_at, now()), leased_until = now() + p_lease
        from ready where r.run_id = ready.run_id
        returning r.run_id, r.thread_id, r.assistant_id, r.kwargs, r.attempt, r.is_temporary, ready.was_started,
            r.cancel_action, r.cancel_reason, extract(epoch from now() - greatest(r.run_after, r.created_at))::float8,
            coalesce(r.is_streamed and r.admitted_by <> p_worker_id, false), r.is_suspect;
end $$;

-- Release runs whose lease has expired. A run that lost too many workers ends in an error instead. A run with a
-- cancellation is released as well: the next worker ends it without executing it. A run whose thread another transaction
-- has locked is left for the next call. A lease lasts seconds: one that ends in more than a minute is from before the clock
-- was set back, and is shortened to a minute. Its worker, if it still lives, renews it in time.
create or replace function release_expired_runs(p_limit int, p_max_attempts int)
returns table (run_id uuid, outcome text)
language plpgsql set search_path from current as $$
declare
    candidate record;
    expired runs;
    reason jsonb;
begin
    update runs r set leased_until = now() + interval '1 minute' where r.run_id in (
        select e.run_id from runs e where e.status = 'running' and e.leased_until > now() + interval '1 minute'
        order by e.thread_id for update skip locked
    );
    for candidate in
        select r.run_id, r.thread_id from runs r where r.status = 'running' and r.leased_until < now()
        order by r.leased_until limit p_limit
    loop
        perform from threads t where t.thread_id = candidate.thread_id for update skip locked;
        continue when not found;
        select r.* into expired from runs r
        where r.run_id = candidate.run_id and r.status = 'running' and r.leased_until < now() for update skip locked;
        continue when not found;
        if expired.lost_attempts + 1 < p_max_attempts then
            update runs r set status = 'pending', worker_id = null, leased_until = null, lost_attempts = r.lost_attempts + 1
            where r.run_id = expired.run_id;
            return query select expired.run_id, 'released';
        else
            reason := jsonb_build_object(
                'error', 'WorkerLost',
                'message', format('the worker was lost %s times while executing this run', expired.lost_attempts + 1)
            );
            update runs r set
                status = 'error', worker_id = null, leased_until = null, error = reason, updated_at = now(),
                lost_attempts = r.lost_attempts + 1, cancel_action = null
            where r.run_id = expired.run_id;
            perform leave_thread(expired.thread_id, 'error', null, null, reason, false);
            update threads t set delete_after = thread_kept_until(expired)
            where t.thread_id = expired.thread_id and expired.is_temporary;
            return query select expired.run_id, 'failed';
        end if;
    end loop;
end $$;
