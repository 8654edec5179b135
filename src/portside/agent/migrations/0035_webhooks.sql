-- Webhooks: what is owed to the addresses that clients named for the ends of their runs. It is noted in the transaction
-- that ends the run, whoever ends it, so that no death of a process loses it; it is paid by `agent/webhooks`.

-- Where the end of a run is to be told. Beside `kwargs`, because at the end those may be large and stored apart.
alter table runs add column webhook text;

create function note_webhook() returns trigger language plpgsql as $$
begin
    new.webhook := new.kwargs ->> 'webhook';
    return new;
end $$;

create trigger runs_note_webhook before insert on runs
    for each row when (new.kwargs ->> 'webhook' is not null) execute function note_webhook();

-- One row for each run, and in `log` each attempt at telling it. What is told is kept as it is stored, and only until the
-- delivery is over. The run itself may be gone by then.
create table webhook_deliveries (
    run_id uuid primary key,
    thread_id uuid not null,
    url text not null,
    host text not null generated always as (coalesce(substring(lower(url) from '^[a-z]+://([^/?#]*)'), '')) stored,
    status text not null default 'pending' check (status in ('pending', 'delivered', 'failed')),
    attempts int not null default 0,
    due_at timestamptz not null default now(),
    log jsonb not null default '[]',
    run jsonb,
    "values" jsonb,
    run_created_at timestamptz not null,
    run_started_at timestamptz,
    run_ended_at timestamptz not null,
    updated_at timestamptz not null default now()
);

create index webhook_deliveries_due on webhook_deliveries (due_at) where status = 'pending';
create index webhook_deliveries_over on webhook_deliveries (updated_at) where status <> 'pending';

create function owe_webhook() returns trigger language plpgsql as $$
begin
    insert into webhook_deliveries (
        run_id, thread_id, url, run, "values", run_created_at, run_started_at, run_ended_at
    )
    select new.run_id, new.thread_id, new.webhook,
        jsonb_build_object(
            'assistant_id', new.assistant_id, 'metadata', new.metadata, 'status', new.status, 'kwargs', new.kwargs,
            'multitask_strategy', new.multitask_strategy, 'error', new.error, 'cancel_reason', new.cancel_reason
        ),
        t."values", new.created_at, new.started_at, new.updated_at
    from threads t where t.thread_id = new.thread_id
    on conflict do nothing;
    return null;
end $$;

-- When the transaction is about to be committed: only then does the thread have the values that the run left.
create constraint trigger runs_owe_webhook after update of status on runs deferrable initially deferred
    for each row when (
        new.webhook is not null
        and old.status in ('pending', 'running') and new.status in ('success', 'error', 'timeout', 'interrupted')
    ) execute function owe_webhook();

-- End a run that this worker still owns, as before; a stateless run that names a webhook has an end of its own as well,
-- and its thread stays for a minute.
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
        or (
            ended.admitted_by = p_worker_id and ended.attempt = 1
            and ended.request_key is null and ended.webhook is null
        )
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
