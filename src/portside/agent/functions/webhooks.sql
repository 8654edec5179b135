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
    perform insert_webhook_delivery(new, t."values", t.long_values) from threads t where t.thread_id = new.thread_id;
    return null;
end $$;
