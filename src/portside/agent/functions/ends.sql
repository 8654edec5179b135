-- Ending runs.

-- The webhook call of a run that has ended, with the values of its thread. The first one for a run counts.
create or replace function insert_webhook_delivery(p_run runs, p_values jsonb, p_long_values jsonb) returns void
language plpgsql set search_path from current as $$
begin
    insert into webhook_deliveries (
        run_id, thread_id, url, run, "values", long_values, run_created_at, run_started_at, run_ended_at
    )
    values (
        p_run.run_id, p_run.thread_id, p_run.webhook,
        jsonb_build_object(
            'assistant_id', p_run.assistant_id, 'metadata', p_run.metadata, 'status', p_run.status,
            'kwargs', p_run.kwargs, 'multitask_strategy', p_run.multitask_strategy, 'error', p_run.error,
            'cancel_reason', p_run.cancel_reason
        ),
        p_values, p_long_values, p_run.created_at, p_run.started_at, p_run.updated_at
    )
    on conflict do nothing;
end $$;

-- End a run that this worker still owns. Returns `ended`; `lost` when another worker has the lease, whose result counts;
-- `rollback` when a rollback was requested while the run was ending otherwise, and nothing was written.
-- A run that is rolled back leaves no row; a thread that was in an error before the run still is.
-- The thread of a stateless run is deleted with it. It stays for a while where a client may still read the result from it:
-- another process admitted the run, the run was started again, it has an idempotency key, or it has a webhook.
-- `p_webhook_values` are the whole values for the webhook, if the thread's row will lack the long lists.
create or replace function end_run(
    p_run_id uuid, p_thread_id uuid, p_worker_id uuid, p_attempt int, p_status text,
    p_thread_status text, p_values jsonb, p_interrupts jsonb, p_error jsonb, p_long_values jsonb default null,
    p_webhook_values jsonb default null
) returns text
language plpgsql set search_path from current as $$
declare
    before record;
    ended runs;
begin
    select t.idle_status, t.error into before from threads t where t.thread_id = p_thread_id for update;
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
        if before.idle_status = 'error' then
            p_thread_status := 'error';
            p_error := before.error;
        end if;
        -- The run may have changed the thread's graph: restore that of the last run that is left.
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
        where r.run_id = p_run_id
        returning r.* into ended;
        if p_webhook_values is not null then
            -- Before the trigger at the commit, which finds the row of the thread without its lists.
            perform insert_webhook_delivery(ended, p_webhook_values, null);
        end if;
    end if;
    perform leave_thread(
        p_thread_id, p_thread_status, p_values, p_interrupts, case when p_thread_status is not null then p_error end,
        p_status = 'rolled_back', p_long_values
    );
    if ended.is_temporary then
        update threads t set delete_after = thread_kept_until(ended) where t.thread_id = p_thread_id;
    end if;
    return 'ended';
end $$;

-- End several runs of one worker in the order of their threads, then claim runs for the slots that became free, if one of
-- the threads has other runs or with `p_always_claim`. Without `p_wait`, a run whose thread another transaction has locked
-- is `locked` and stays as it is, so that no end waits for another thread. `has_next` is read while the thread of a run
-- that has ended is still locked: no run is admitted in between. Rows of claimed runs have no `batch_index`.
create or replace function end_runs(
    p_worker_id uuid, p_run_ids uuid[], p_thread_ids uuid[], p_attempts int[], p_statuses text[],
    p_thread_statuses text[], p_values text[], p_interrupts text[], p_errors text[], p_wait boolean, p_lease interval,
    p_claim_limit int, p_always_claim boolean, p_long_values text[] default null, p_webhook_values text[] default null
) returns table (
    batch_index int, outcome text, has_next boolean, run_id uuid, thread_id uuid, assistant_id uuid, kwargs jsonb, attempt int,
    is_temporary boolean, was_started boolean, cancel_action text, cancel_reason text, waited_s float8, is_streamed_elsewhere boolean,
    is_suspect boolean
)
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
    e record;
begin
    for e in
        select n.* from unnest(
            p_run_ids, p_thread_ids, p_attempts, p_statuses, p_thread_statuses, p_values, p_interrupts, p_errors,
            p_long_values, p_webhook_values
        ) with ordinality as n (
            run_id, thread_id, attempt, status, thread_status, "values", interrupts, error, long_values, webhook_values,
            batch_index
        )
        order by n.thread_id
    loop
        batch_index := e.batch_index;
        outcome := null;
        if not p_wait then
            perform from threads t where t.thread_id = e.thread_id for update skip locked;
            if not found and exists (select from threads t where t.thread_id = e.thread_id) then
                outcome := 'locked';
            end if;
        end if;
        outcome := coalesce(outcome, end_run(
            e.run_id, e.thread_id, p_worker_id, e.attempt, e.status, e.thread_status, e."values"::jsonb,
            e.interrupts::jsonb, e.error::jsonb, e.long_values::jsonb,
            e.webhook_values::jsonb
        ));
        has_next := outcome = 'ended' and has_active_runs(e.thread_id);
        p_always_claim := p_always_claim or has_next;
        return next;
    end loop;
    if p_always_claim and p_claim_limit > 0 then
        return query select null::int, 'claimed', false, c.* from claim_runs(p_worker_id, p_lease, p_claim_limit) c;
    end if;
end $$;
