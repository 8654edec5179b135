-- name: lock_revision_for_logs
-- Prevents the delete of the deployment, and so of the revision, while entries are added.
select r.id from revisions r
join deployments d on d.id = r.deployment_id
where r.id = :id and r.deployment_id = :deployment_id and d.workspace_id = :workspace_id
for key share of d

-- name: insert_logs
-- In the order of the batch: ids are given in it, and lists are sorted by id.
insert into revision_logs (deployment_id, revision_id, type, at, level, message)
select :deployment_id, :revision_id, :type, entry.at, entry.level, entry.message
from unnest(:moments::timestamptz[], :levels::text[], :messages::text[])
    with ordinality as entry (at, level, message, position)
order by entry.position

-- name: trim_logs
-- Finds the oldest entry to keep by the index and deletes all entries before it.
delete from revision_logs
where revision_id = :revision_id and type = :type and id <= (
    select id from revision_logs
    where revision_id = :revision_id and type = :type
    order by id desc offset :keep limit 1
)

-- name: delete_old_logs
-- Deletes the logs of revisions that neither serve nor are the newest. The age is that of the last entry: a revision that
-- served for a year keeps its logs for a while after it was replaced. A batch of revisions has at most two logs each, whose
-- lengths are limited.
with old as (
    select r.id from revisions r
    join deployments d on d.id = r.deployment_id
    cross join lateral (
        select max(newest.at) as last_at
        from (values ('build'), ('deploy')) as kind (type)
        cross join lateral (
            select l.at from revision_logs l where l.revision_id = r.id and l.type = kind.type order by l.id desc limit 1
        ) newest
    ) log
    where r.created_at < now() - make_interval(days => :days)
      and log.last_at < now() - make_interval(days => :days)
      and r.id is distinct from d.active_revision_id and r.id is distinct from d.latest_revision_id
    order by r.created_at limit :batch
)
delete from revision_logs where revision_id in (select id from old)

-- name: logs_oldest_first
-- In the order of arrival, not of timestamps: entries that arrive late still come after a follower's offset.
select id, at, level, message from revision_logs
where deployment_id = :deployment_id and type = :type
  and (:revision_id::uuid is null or revision_id = :revision_id)
  and (:offset::bigint is null or id > :offset)
  and (:level::text is null or level = :level)
  and (:text::text is null or position(lower(:text) in lower(message)) > 0)
  and (:start_time::timestamptz is null or at >= :start_time)
  and (:end_time::timestamptz is null or at < :end_time)
order by id
limit :limit

-- name: logs_newest_first
select id, at, level, message from revision_logs
where deployment_id = :deployment_id and type = :type
  and (:revision_id::uuid is null or revision_id = :revision_id)
  and (:offset::bigint is null or id < :offset)
  and (:level::text is null or level = :level)
  and (:text::text is null or position(lower(:text) in lower(message)) > 0)
  and (:start_time::timestamptz is null or at >= :start_time)
  and (:end_time::timestamptz is null or at < :end_time)
order by id desc
limit :limit
