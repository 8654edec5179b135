-- name: lock_repo
-- Every commit locks this row, so that commits are made one after the other.
update prompt_repos set updated_at = now() where id = :repo_id and workspace_id = :workspace_id returning id

-- name: keep_repo
-- The repository, and so its commits, cannot be deleted before the transaction ends.
select id from prompt_repos where id = :repo_id for key share

-- name: latest_commit
select id, number, commit_hash, manifest_hash from prompt_commits where repo_id = :repo_id order by number desc limit 1

-- name: create_commit
insert into prompt_commits (id, repo_id, number, parent_id, commit_hash, manifest_hash, manifest, description)
values (:id, :repo_id, :number, :parent_id, :commit_hash, :manifest_hash, :manifest::json, :description)

-- name: list_commits
select c.id, c.repo_id, c.parent_id, c.commit_hash, p.commit_hash as parent_commit_hash, c.description,
       c.num_downloads, c.created_at
from prompt_commits c
left join prompt_commits p on p.id = c.parent_id
where c.repo_id = :repo_id and (:id::uuid is null or c.id = :id::uuid)
order by c.number desc
limit :limit::int offset :offset::int

-- name: count_commits
select count(*) from prompt_commits where repo_id = :repo_id

-- name: commit_tagged
select commit_id from prompt_tags where repo_id = :repo_id and name = :name

-- name: commits_that_begin
-- At most two rows: one is a match, two are ambiguous.
select id from prompt_commits where repo_id = :repo_id and starts_with(commit_hash, :start) limit 2

-- name: pull_commit
-- A pull counts for the commit and for its repository.
with counted as (
    update prompt_repos set num_downloads = num_downloads + 1 where id = :repo_id
)
update prompt_commits set num_downloads = num_downloads + 1
where id = :id
returning id, commit_hash, manifest, description

-- name: commit_exists
select id from prompt_commits where repo_id = :repo_id and id = :id

-- name: tag_commit
-- A tag that exists moves to the commit.
insert into prompt_tags (id, repo_id, name, commit_id) values (:id, :repo_id, :name, :commit_id)
on conflict (repo_id, name) do update set commit_id = excluded.commit_id, updated_at = now()

-- name: list_tags
select t.id, t.repo_id, t.commit_id, c.commit_hash, t.name as tag_name, t.created_at, t.updated_at
from prompt_tags t
join prompt_commits c on c.id = t.commit_id
where t.repo_id = :repo_id and (:name::text is null or t.name = :name::text)
order by t.name

-- name: delete_tag
delete from prompt_tags where repo_id = :repo_id and name = :name

-- name: manifest_of_commit
select manifest from prompt_commits where repo_id = :repo_id and id = :id

-- name: linked_repos
-- The repositories that links lead to, as far as the caller's workspace may read them, with their latest commits.
select l.owner as asked_owner, l.handle, w.tenant_handle as owner, r.repo_type, c.id as commit_id, c.commit_hash
from (select distinct x.owner, x.handle from unnest(:owners::text[], :handles::text[]) as x (owner, handle)) l
join prompt_repos r on r.handle = l.handle
join workspaces w on w.id = r.workspace_id
left join lateral (
    select k.id, k.commit_hash from prompt_commits k where k.repo_id = r.id order by k.number desc limit 1
) c on true
where case when r.workspace_id = :workspace_id then l.owner in ('-', w.tenant_handle)
           else r.is_public and w.tenant_handle = l.owner end
