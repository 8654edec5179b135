-- name: integration_of_webhook
-- Includes the workspace, because a push has no API key that would name it.
select i.id, i.kind, i.webhook_secret_sealed, i.workspace_id, w.organization_id
from integrations i
join workspaces w on w.id = i.workspace_id
where i.id = :id

-- name: insert_delivery
-- A second delivery with the same id waits here for the first one's transaction, and then returns no row.
insert into push_deliveries (integration_id, delivery_id) values (:integration_id, :delivery_id)
on conflict do nothing
returning delivery_id

-- name: delete_deliveries
delete from push_deliveries where received_at < now() - make_interval(days => :after_days)

-- name: deployments_to_build
-- The deployments whose latest revision follows the branch, of any repository: `pushes.py` compares the addresses. A revision
-- without a branch follows the default branch.
select d.id, d.repo_url, coalesce(r.repo_ref, 'HEAD') as repo_ref from deployments d
join revisions r on r.id = d.latest_revision_id
where d.workspace_id = :workspace_id and d.integration_id = :integration_id and d.build_on_push
  and d.status <> 'AWAITING_DELETE' and r.source in ('git_hosting', 'github')
  and (r.repo_ref = :branch or (:is_default and r.repo_ref is null))
order by d.id

-- name: latest_content
-- The state that a branch's head is compared with. `was_deployed` is true for a commit that a rollback left.
select r.status, coalesce(r.repo_ref, 'HEAD') as repo_ref, r.repo_commit_sha, p.last_ref, p.last_commit,
       exists (select 1 from revisions e where e.deployment_id = d.id and e.repo_commit_sha = :commit) as was_deployed
from deployments d
join revisions r on r.id = d.latest_revision_id
left join branch_polls p on p.deployment_id = d.id
where d.id = :id

-- name: record_seen_commit
-- The commit that later polls compare with. The branch could be read, so an earlier failure is over.
insert into branch_polls (deployment_id, polled_at, last_ref, last_commit)
values (:deployment_id, now(), :ref, :commit)
on conflict (deployment_id) do update set last_ref = excluded.last_ref, last_commit = excluded.last_commit, failure = null

-- name: record_poll_failure
-- A success sets null.
update branch_polls set failure = :failure where deployment_id = :deployment_id and failure is distinct from :failure

-- name: claim_polls
-- Claims each branch once per period. Concurrent processes skip branches that another one is claiming. A poll in the future
-- is from before the clock was set back.
with due as (
    select d.id from deployments d
    join revisions r on r.id = d.latest_revision_id
    left join branch_polls p on p.deployment_id = d.id
    where d.build_on_push and d.status <> 'AWAITING_DELETE' and d.repo_url is not null
      and r.source in ('git_hosting', 'github') and coalesce(r.repo_ref, 'HEAD') not like 'refs/tags/%'
      and (
          p.polled_at is null
          or p.polled_at not between now() - make_interval(secs => :every_s) and now() + interval '1 minute'
      )
    order by p.polled_at nulls first, d.id
    limit :limit
    for no key update of d skip locked
)
insert into branch_polls (deployment_id, polled_at)
select id, now() from due
on conflict (deployment_id) do update set polled_at = now()
    where branch_polls.polled_at not between now() - make_interval(secs => :every_s) and now() + interval '1 minute'
returning deployment_id

-- name: branches_to_poll
select d.id, d.workspace_id, w.organization_id, d.repo_url, coalesce(r.repo_ref, 'HEAD') as repo_ref,
       i.id as integration_id, i.kind, i.base_url, i.token_sealed, p.failure
from deployments d
join workspaces w on w.id = d.workspace_id
join revisions r on r.id = d.latest_revision_id
left join integrations i on i.id = d.integration_id
left join branch_polls p on p.deployment_id = d.id
where d.id = any(:ids::uuid[])
