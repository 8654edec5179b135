-- name: claim_webhooks
-- Deliveries whose time has come, for one process and some time: one that dies leaves them to the next. Hosts that are
-- called often enough just now are passed over, so that one that does not answer holds up nobody else.
update webhook_deliveries d set attempts = d.attempts + 1, due_at = now() + make_interval(secs => :claim_s)
where d.run_id in (
    select run_id from webhook_deliveries
    where status = 'pending' and due_at <= now() and host <> all(:busy_hosts::text[])
    order by due_at limit :limit for update skip locked
)
returning run_id, thread_id, url, host, attempts, "values", run_created_at, run_started_at,
    run_ended_at, (run ->> 'assistant_id')::uuid as assistant_id, run ->> 'status' as status,
    run -> 'metadata' as metadata, run -> 'kwargs' as kwargs, run -> 'error' as error,
    run ->> 'multitask_strategy' as multitask_strategy, run ->> 'cancel_reason' as cancel_reason

-- name: settle_webhook
-- What came of an attempt, unless another process has made a later one since. What was told is not kept.
update webhook_deliveries set
    status = :status, log = log || :entry::jsonb, updated_at = now(),
    due_at = now() + make_interval(secs => :delay_s),
    run = case when :status = 'pending' then run end, "values" = case when :status = 'pending' then "values" end
where run_id = :run_id and attempts = :attempt and status = 'pending'

-- name: get_webhook_delivery
-- It outlives its run and its thread, but is nothing to whoever makes another thread of the same id.
select d.run_id, d.url, d.status, d.log, case when d.status = 'pending' then d.due_at end as next_attempt_at
from webhook_deliveries d
where d.run_id = :run_id and d.thread_id = :thread_id
    and not exists (select from threads t where t.thread_id = d.thread_id and t.created_at > d.run_created_at)

-- name: delete_old_webhooks
delete from webhook_deliveries
where run_id in (
    select run_id from webhook_deliveries
    where status <> 'pending' and updated_at < now() - make_interval(secs => :keep_s)
    order by updated_at limit :limit for update skip locked
)
