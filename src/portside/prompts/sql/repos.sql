-- name: settings_of_workspace
select id, display_name, created_at, tenant_handle from workspaces where id = :workspace_id

-- name: find_repo
-- A repository of the workspace itself, or a public one of another workspace.
select r.id, r.workspace_id, r.repo_type
from prompt_repos r
join workspaces w on w.id = r.workspace_id
where r.handle = :handle
  and case when r.workspace_id = :workspace_id then :owner::text in ('-', w.tenant_handle)
           else r.is_public and w.tenant_handle = :owner::text end

-- name: list_repos
-- A repository by its id may be of another workspace: `find_repo` has checked that the caller may read it.
select r.id, r.workspace_id as tenant_id, w.tenant_handle as owner, r.handle as repo_handle,
       w.tenant_handle || '/' || r.handle as full_name, r.description, r.readme, r.tags, r.is_public, r.is_archived,
       r.num_downloads, r.num_views, l.n as num_likes, coalesce(l.mine, false) as liked_by_auth_user,
       coalesce(c.number, 0) as num_commits, c.commit_hash as last_commit_hash, r.created_at, r.updated_at,
       r.repo_type,
       count(*) over () as total
from prompt_repos r
join workspaces w on w.id = r.workspace_id
cross join lateral (
    select count(*) as n, bool_or(k.liked_by = :liked_by) as mine from prompt_likes k where k.repo_id = r.id
) l
left join lateral (
    select c.number, c.commit_hash from prompt_commits c where c.repo_id = r.id order by c.number desc limit 1
) c on true
where case when :id::uuid is null then r.workspace_id = :workspace_id and r.repo_type = :repo_type::text
           else r.id = :id::uuid end
  and (:is_public::boolean is null or r.is_public = :is_public::boolean)
  and (:is_archived::boolean is null or r.is_archived = :is_archived::boolean)
  and (:tags::text[] is null or r.tags @> :tags::text[])
  and (:words::text is null or position(
      case when :match_prefix::boolean then ' ' else '' end || lower(:words::text) in
      ' ' || lower(translate(concat_ws(' ', r.handle, r.description, r.readme, array_to_string(r.tags, ' ')),
                             '-_./:,;()' || chr(10), '          '))
  ) > 0 or position(lower(:start::text) in r.handle) = 1)
order by
    case when :ascending::boolean then 1 else -1 end * case :sort_field::text
        when 'num_downloads' then r.num_downloads
        when 'num_views' then r.num_views
        when 'num_likes' then l.n
        else extract(epoch from r.updated_at)
    end,
    r.handle
limit :limit::int offset :offset::int

-- name: create_repo
-- No row if the workspace has a repository of this handle.
insert into prompt_repos (id, workspace_id, handle, description, readme, tags, is_public, repo_type)
values (:id, :workspace_id, :handle, :description, :readme, :tags::text[], :is_public, :repo_type)
on conflict do nothing
returning id

-- name: update_repo
-- Null leaves a field as it is.
update prompt_repos set
    description = coalesce(:description::text, description),
    readme = coalesce(:readme::text, readme),
    tags = coalesce(:tags::text[], tags),
    is_public = coalesce(:is_public::boolean, is_public),
    is_archived = coalesce(:is_archived::boolean, is_archived),
    updated_at = now()
where id = :id and workspace_id = :workspace_id

-- name: delete_repo
delete from prompt_repos where id = :id and workspace_id = :workspace_id

-- name: count_view
update prompt_repos set num_views = num_views + 1 where id = :id

-- name: like_repo
insert into prompt_likes (repo_id, liked_by) values (:id, :liked_by) on conflict do nothing

-- name: unlike_repo
delete from prompt_likes where repo_id = :id and liked_by = :liked_by

-- name: likes_of_repo
select count(*) from prompt_likes where repo_id = :id

-- name: empty_workspace
delete from prompt_repos where workspace_id = :workspace_id
