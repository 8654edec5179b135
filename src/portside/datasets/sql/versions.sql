-- name: begin_version
-- Later than every version before it, whatever the clock says. The caller has locked the row of the dataset. A version of
-- another server keeps its time: no row unless that is later than the versions before it, and past.
insert into dataset_versions (workspace_id, dataset_id, as_of)
select :workspace_id, :dataset_id,
       coalesce(:as_of::timestamptz, greatest(clock_timestamp(), max(v.as_of) + interval '1 microsecond'))
from dataset_versions v
where v.workspace_id = :workspace_id and v.dataset_id = :dataset_id
having :as_of::timestamptz is null
    or (:as_of::timestamptz > coalesce(max(v.as_of), '-infinity') and :as_of::timestamptz <= clock_timestamp())
returning as_of

-- name: note_change
update datasets set modified_at = :as_of where workspace_id = :workspace_id and id = :dataset_id

-- name: list_versions
-- Versions are counted from the first one, before a search leaves any out.
select v.as_of, coalesce(t.tags, '{}'::text[]) as tags, v.number
from (
    select workspace_id, dataset_id, as_of, row_number() over (order by as_of) as number
    from dataset_versions where workspace_id = :workspace_id and dataset_id = :dataset_id
) v
cross join lateral (
    select array_agg(t.tag order by t.tag) as tags from dataset_tags t
    where t.workspace_id = v.workspace_id and t.dataset_id = v.dataset_id and t.as_of = v.as_of
) t
where :search::text is null or exists (
    select from unnest(t.tags) x (tag) where position(lower(:search::text) in lower(x.tag)) > 0
)
order by v.as_of desc
limit :limit::int offset :offset::int

-- name: version_at
-- The last version up to a moment, and how many there are up to it.
select max(as_of) as as_of, count(*) as number from dataset_versions
where workspace_id = :workspace_id and dataset_id = :dataset_id
  and (:as_of::timestamptz is null or as_of <= :as_of::timestamptz)

-- name: version_tagged
select as_of from dataset_tags where workspace_id = :workspace_id and dataset_id = :dataset_id and tag = :tag

-- name: tags_of_version
select tag from dataset_tags
where workspace_id = :workspace_id and dataset_id = :dataset_id and as_of = :as_of
order by tag

-- name: tag_version
-- No row if the dataset has no version of exactly this moment. A tag on another version moves.
insert into dataset_tags (workspace_id, dataset_id, tag, as_of)
select v.workspace_id, v.dataset_id, :tag, v.as_of from dataset_versions v
where v.workspace_id = :workspace_id and v.dataset_id = :dataset_id and v.as_of = :as_of
on conflict (workspace_id, dataset_id, tag) do update set as_of = excluded.as_of

-- name: diff_versions
-- The differences between two moments; a changed example has a row for each of its states.
select coalesce(o.id, n.id) as id, o.id is null as is_added, n.id is null as is_removed
from (
    select id, since from examples
    where workspace_id = :workspace_id and dataset_id = :dataset_id and since <= :before and until > :before
) o
full join (
    select id, since from examples
    where workspace_id = :workspace_id and dataset_id = :dataset_id and since <= :after and until > :after
) n on n.id = o.id
where o.since is distinct from n.since
order by 1
