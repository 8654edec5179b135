-- name: lock_alerts
-- One process at a time decides what has begun and ended.
select pg_advisory_xact_lock(x'616c6572'::int)

-- name: open_alerts
-- Also those that are pending, which have not fired yet.
select id, rule, subject, began_at, fired_at, recovering_since, notified_at from alerts where ended_at is null

-- name: rule_changes
select rule, is_enabled, threshold, for_s from alert_rules

-- name: change_rule
insert into alert_rules (rule, is_enabled, threshold, for_s) values (:rule, :is_enabled, :threshold, :for_s)
on conflict (rule) do update
    set is_enabled = excluded.is_enabled, threshold = excluded.threshold, for_s = excluded.for_s

-- name: active_silences
select id, rule, subject, until, comment, created_at from alert_silences where until > now() order by until, id

-- name: insert_silence
insert into alert_silences (id, rule, subject, until, comment) values (:id, :rule, :subject, :until, :comment)

-- name: delete_silence
delete from alert_silences where id = :id

-- name: store_alert
insert into alerts (id, rule, subject, name, detail, value, threshold, began_at, fired_at, recovering_since, ended_at)
values (:id, :rule, :subject, :name, :detail, :value, :threshold, :began_at, :fired_at, :recovering_since, :ended_at)
on conflict (id) do update set
    name = excluded.name, detail = excluded.detail, value = excluded.value, threshold = excluded.threshold,
    began_at = excluded.began_at, fired_at = excluded.fired_at, recovering_since = excluded.recovering_since, ended_at = excluded.ended_at

-- name: end_alert
-- Ends an alert whose subject is gone: the value that it had last stays.
update alerts set ended_at = :now, recovering_since = null where id = :id

-- name: forget_alert
-- Of a condition that ended before its alert fired: nobody was told of it.
delete from alerts where id = :id

-- name: notify
-- Queues a message for each channel; the end only for channels that got the beginning.
with queued as (
    insert into alert_deliveries (id, channel_id, alert_id, event)
    select gen_random_uuid(), c.id, a.id, :event::text
    from alert_channels c, alerts a
    where a.id = :alert_id and (:event::text = 'firing' or exists (
        select from alert_deliveries d where d.channel_id = c.id and d.alert_id = a.id and d.event = 'firing'
    ))
    on conflict do nothing
)
update alerts set notified_at = coalesce(notified_at, now()) where id = :alert_id

-- name: list_alerts
-- Alerts that fire first, then those that have ended, newest first.
select id, rule, subject, name, detail, value, threshold, began_at, fired_at, ended_at, notified_at,
    exists (
        select from alert_silences s
        where s.rule = alerts.rule and (s.subject is null or s.subject = alerts.subject) and s.until > now()
    ) as is_silenced
from alerts
where fired_at is not null and (:is_open::boolean is null or (ended_at is null) = :is_open::boolean)
order by ended_at is not null, fired_at desc, id
limit :limit

-- name: delete_old_alerts
delete from alerts where ended_at < :before

-- name: delete_old_silences
delete from alert_silences where until < :before

-- name: list_channels
-- The error is that of the last message that was tried; an earlier one may have been delivered.
select c.id, c.kind, c.name, c.target_sealed, c.created_at, last.error,
    (select max(d.delivered_at) from alert_deliveries d where d.channel_id = c.id) as delivered_at
from alert_channels c
left join lateral (
    select error from alert_deliveries d
    where d.channel_id = c.id and d.attempts > 0 order by d.created_at desc limit 1
) last on true
where :id::uuid is null or c.id = :id::uuid
order by c.created_at, c.id

-- name: insert_channel
-- Returns no row if the name is taken.
insert into alert_channels (id, kind, name, target_sealed) values (:id, :kind, :name, :target_sealed)
on conflict (name) do nothing
returning id

-- name: delete_channel
-- Its messages go with it, also those that were not delivered yet.
delete from alert_channels where id = :id returning id

-- name: claim_deliveries
-- Takes messages that are due. Whoever takes one and dies leaves it to the next after :claim_s. The end of an alert waits
-- for the message that it began. A time beyond the longest pause after so many attempts is of a clock that was set back
-- since: the message is due, or it would wait for as long as the clock went back.
with due as (
    select d.id from alert_deliveries d
    where (d.next_at <= now() or d.next_at > now() + make_interval(secs => greatest(
        :claim_s::double precision,
        least(:longest_pause_s::double precision, :first_pause_s::double precision * 2 ^ (d.attempts - 1))
    ))) and (d.event = 'firing' or not exists (
        select from alert_deliveries earlier
        where earlier.channel_id = d.channel_id and earlier.alert_id = d.alert_id and earlier.event = 'firing'
            and earlier.next_at is not null
    ))
    order by d.next_at limit :limit for update skip locked
)
update alert_deliveries d
set attempts = d.attempts + 1, next_at = now() + make_interval(secs => :claim_s::double precision)
from due, alert_channels c, alerts a
where d.id = due.id and c.id = d.channel_id and a.id = d.alert_id
returning d.id, d.event, d.attempts, c.id as channel_id, c.kind, c.target_sealed, a.id as alert_id, a.rule, a.subject,
    a.name, a.detail, a.value, a.threshold, a.began_at, a.fired_at, a.ended_at

-- name: record_attempt
-- Without :retry_s the message is not sent again.
update alert_deliveries set
    error = :error,
    delivered_at = case when :error::text is null then now() end,
    next_at = now() + make_interval(secs => :retry_s::double precision)
where id = :id

-- name: failed_deployments
-- Deployments whose newest revision has failed, with its reason.
select d.id, d.name, w.display_name as workspace, r.status, r.status_message
from deployments d
join workspaces w on w.id = d.workspace_id
join revisions r on r.id = d.latest_revision_id
where r.status in ('CREATE_FAILED', 'BUILD_FAILED', 'DEPLOY_FAILED') and d.status <> 'AWAITING_DELETE'

-- name: measured_deployments
-- What listeners have reported in the last two minutes; an older report says nothing of now.
select d.id, d.name, w.display_name as workspace, m.metrics
from deployments d
join workspaces w on w.id = d.workspace_id
join deployment_metrics m on m.deployment_id = d.id
where m.measured_at > now() - interval '2 minutes' and d.status <> 'AWAITING_DELETE'

-- name: down_deployments
-- Deployments of which a listener says that nothing is known to serve. One that cannot be restored has no metrics.
select d.id, d.name, w.display_name as workspace, d.status_message
from deployments d
join workspaces w on w.id = d.workspace_id
where d.status = 'UNKNOWN' and d.status_message is not null

-- name: project_errors
-- Traces of the last :window_s seconds and how many of them failed, for each deployment's project. The traces are counted
-- in an index, and of their runs only those with an error are read.
with recent as (
    select w.workspace_id, t.project_id, count(*) as traces
    from (select distinct workspace_id from deployments) w
    join traces t on t.workspace_id = w.workspace_id
        and t.received_at > now() - make_interval(secs => :window_s::double precision) and not t.is_imported
    group by w.workspace_id, t.project_id
)
select d.id, d.name, w.display_name as workspace, t.traces, least(t.traces, found.failed) as failed
from deployments d
join workspaces w on w.id = d.workspace_id
join recent t on t.workspace_id = d.workspace_id and t.project_id = d.tracing_project_id
cross join lateral (
    select count(*) as failed
    from runs r
    where r.workspace_id = d.workspace_id and r.project_id = d.tracing_project_id and r.parent_run_id is null
        and r.error is not null
        and coalesce(r.start_time, r.received_at) > now() - make_interval(secs => :window_s::double precision)
) found
where t.traces >= :least

-- name: silent_listeners
-- Listeners with deployments, and how long ago each was heard of.
select l.id, l.compute_id as name, w.display_name as workspace,
    extract(epoch from now() - coalesce(l.last_seen_at, l.created_at))::double precision as silent_s
from listeners l
join workspaces w on w.id = l.workspace_id
where exists (select from deployments d where l.id in (d.assigned_listener_id, d.listener_id))

-- name: used_limits
-- How much of each monthly limit is used. Months are in UTC.
with month as (select date_trunc('month', now() at time zone 'UTC') at time zone 'UTC' as start)
select u.id, u.limit_type, u.limit_value, w.display_name as workspace, case u.limit_type
    when 'monthly_traces' then (
        select count(*) from traces t
        where t.workspace_id = u.workspace_id and t.received_at >= m.start and not t.is_imported
    )
    else (
        select count(*) from traces t where t.workspace_id = u.workspace_id and t.tier = 'longlived'
            and not t.is_imported and (t.extended_at >= m.start or (t.received_at >= m.start and t.extended_at is null))
    )
end as used
from usage_limits u
join workspaces w on w.id = u.workspace_id and w.deleted_at is null
cross join month m
