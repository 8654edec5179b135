-- name: claim_webhooks
-- undecryptable: mark and keep
-- Claims due deliveries for one process and a limited time: if it dies, another claims them. Hosts with enough calls in
-- progress are skipped, so that a host that does not answer holds up no other. A delivery whose last change lies in the
-- future was written before the clock was set back: it counts as due.
update webhook_deliveries d set
    attempts = d.attempts + 1, due_at = now() + make_interval(secs => :claim_s), updated_at = now()
where d.run_id in (
    select run_id from webhook_deliveries
    where status = 'pending' and (due_at <= now() or updated_at > now() + interval '5 minutes')
        and host <> all(:busy_hosts::text[])
    order by due_at limit :limit for update skip locked
)
returning run_id, thread_id, url, host, attempts, "values", long_values::text, run_created_at, run_started_at,
    run_ended_at, (run ->> 'assistant_id')::uuid as assistant_id, run ->> 'status' as status,
    run -> 'metadata' as metadata, run -> 'kwargs' as kwargs, run -> 'error' as error,
    run ->> 'multitask_strategy' as multitask_strategy, run ->> 'cancel_reason' as cancel_reason

-- name: record_webhook_attempt
-- plain: entry (the result of an attempt, without content of the run)
-- Records an attempt, unless another process has made a later one since. The payload of a finished delivery is deleted.
update webhook_deliveries set
    status = :status, log = log || :entry::jsonb, updated_at = now(),
    due_at = now() + make_interval(secs => :delay_s),
    run = case when :status = 'pending' then run end, "values" = case when :status = 'pending' then "values" end
where run_id = :run_id and attempts = :attempt and status = 'pending'

-- name: get_webhook_delivery
-- A delivery outlives its run and its thread, but is hidden from a later thread with the same id.
select d.run_id, d.url, d.status, d.log, case when d.status = 'pending' then d.due_at end as next_attempt_at
from webhook_deliveries d
where d.run_id = :run_id and d.thread_id = :thread_id
    and not exists (select from threads t where t.thread_id = d.thread_id and t.created_at > d.run_created_at)

-- name: delete_old_webhooks
-- Only those that ended: a pending delivery is tried until its last attempt.
delete from webhook_deliveries
where run_id in (
    select run_id from webhook_deliveries
    where status <> 'pending' and updated_at < now() - make_interval(secs => :keep_s)
    order by updated_at limit :limit for update skip locked
)
