-- Trigger functions that put the webhook call of a run into `webhook_deliveries`.

create or replace function set_run_webhook() returns trigger
language plpgsql set search_path from current as $$
begin
    new.webhook := new.kwargs ->> 'webhook';
    return new;
end $$;

create or replace function enqueue_webhook() returns trigger
language plpgsql set search_path from current as $$
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
