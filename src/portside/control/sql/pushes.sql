-- name: hooked_integration
-- With the workspace that its deployments are in: a push comes without a key.
select i.id, i.kind, i.webhook_secret_sealed, i.workspace_id, w.organization_id
from integrations i
join workspaces w on w.id = i.workspace_id
where i.id = :id

-- name: note_delivery
-- Of two deliveries under one id the later one waits here for the earlier one, and then gets no row.
insert into push_deliveries (integration_id, delivery_id) values (:integration_id, :delivery_id)
on conflict do nothing
returning delivery_id

-- name: forget_deliveries
delete from push_deliveries where received_at < now() - make_interval(days => :after_days)

-- name: deployments_to_build
-- Those that follow the branch: by their latest revision, as the next one would.
select d.id, d.repo_url from deployments d
join revisions r on r.id = d.latest_revision_id
where d.workspace_id = :workspace_id and d.integration_id = :integration_id and d.build_on_push
  and d.status <> 'AWAITING_DELETE' and r.repo_ref = :branch
order by d.id
limit :limit

-- name: latest_content
-- What the branch is compared with.
select r.status, r.repo_ref, r.repo_commit_sha, r.built_from, p.seen_ref, p.seen_commit
from deployments d
join revisions r on r.id = d.latest_revision_id
left join branch_polls p on p.deployment_id = d.id
where d.id = :id

-- name: note_seen
insert into branch_polls (deployment_id, looked_at, seen_ref, seen_commit)
values (:deployment_id, now(), :ref, :commit)
on conflict (deployment_id) do update set seen_ref = excluded.seen_ref, seen_commit = excluded.seen_commit, failure = null

-- name: note_failure
update branch_polls set failure = :failure where deployment_id = :deployment_id and failure is distinct from :failure

-- name: claim_polls
-- Each branch once in a period, by whichever process comes first: what one is about to claim, another one skips.
with due as (
    select d.id from deployments d
    join revisions r on r.id = d.latest_revision_id
    left join branch_polls p on p.deployment_id = d.id
    where d.build_on_push and d.status <> 'AWAITING_DELETE' and d.repo_url is not null
      and r.repo_ref is not null and r.repo_ref not like 'refs/tags/%'
      and (p.looked_at is null or p.looked_at < now() - make_interval(secs => :every_s))
    order by p.looked_at nulls first, d.id
    limit :limit
    for no key update of d skip locked
)
insert into branch_polls (deployment_id, looked_at)
select id, now() from due
on conflict (deployment_id) do update set looked_at = now()
    where branch_polls.looked_at < now() - make_interval(secs => :every_s)
returning deployment_id

-- name: branches_to_look_at
select d.id, d.workspace_id, w.organization_id, d.repo_url, r.repo_ref, i.id as integration_id, i.kind, i.base_url,
       i.token_sealed
from deployments d
join workspaces w on w.id = d.workspace_id
join revisions r on r.id = d.latest_revision_id
left join integrations i on i.id = d.integration_id
where d.id = any(:ids::uuid[])
