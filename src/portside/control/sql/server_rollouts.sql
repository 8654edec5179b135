-- name: lock_rollouts
-- One process at a time decides what comes next. The key of the lock is "roll" in ASCII.
select pg_advisory_xact_lock(x'726f6c6c'::int)

-- name: last_rollout
select id, version, status, deployment_id, reason, skipped, started_at, changed_at
from server_rollouts order by id desc limit 1

-- name: begin_rollout
insert into server_rollouts (version, skipped) values (:version, :skipped) returning id

-- name: resume_rollout
update server_rollouts set status = 'running', deployment_id = null, reason = null, skipped = :skipped, changed_at = now()
where id = :id

-- name: skip_in_rollout
-- While a rollout runs, its status stays.
update server_rollouts set skipped = :skipped where id = :id

-- name: change_rollout
update server_rollouts set status = :status, deployment_id = :deployment_id, reason = :reason, changed_at = now()
where id = :id

-- name: request_roll_forward
-- Each request has a number of its own, so that a report of an earlier one does not end it.
update deployments set roll_forward = nextval('roll_forward_requests') where id = :id

-- name: end_roll_forward
-- 0 means that nothing is requested.
update deployments set roll_forward = 0 where id = :id

-- name: list_servers
-- The deployments that may serve, with what their listeners last reported. A report from before the listener's last start
-- says nothing about its version, and neither does one of the listener from before an upgrade, which has another version.
select d.id, d.workspace_id, d.name, d.status, d.roll_forward, m.metrics ->> 'server_version' as server_version,
       coalesce((m.metrics ->> 'is_behind')::boolean, false) as is_behind,
       (m.metrics ->> 'roll_forward')::bigint as ended_request, m.metrics ->> 'roll_failure' as failure,
       coalesce(
           m.measured_at >= l.updated_at and (l.version = :version or l.compute_type <> 'process' or :is_settled::boolean),
           false
       ) as is_reported, l.version as listener_version
from deployments d
left join deployment_metrics m on m.deployment_id = d.id
left join listeners l on l.id = d.assigned_listener_id
where d.status <> 'AWAITING_DELETE' and d.active_revision_id is not null
order by d.name, d.id
