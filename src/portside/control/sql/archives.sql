-- name: insert_archive
-- Only the hash of the token is stored: whoever reads the database cannot upload.
insert into source_archives (id, deployment_id, token_hash, expires_at)
values (:id, :deployment_id, :token_hash, now() + make_interval(secs => :lifetime_s))

-- name: drop_surplus_archives
-- Bounds the disk that a client can fill with archives that no revision uses.
delete from source_archives where id in (
    select id from source_archives
    where deployment_id = :deployment_id and used_at is null
    order by created_at desc, id desc
    offset :keep
)

-- name: find_open_upload
-- Nothing for an address that is unknown, expired or was used: a client cannot tell these apart.
select id, deployment_id from source_archives
where id = :id and token_hash = :token_hash and expires_at > now() and uploaded_at is null

-- name: finish_archive
-- Of two uploads to one address one wins; an uploaded archive never changes.
update source_archives set uploaded_at = now(), size_bytes = :size_bytes
where id = :id and uploaded_at is null
returning id

-- name: use_archive
-- Several revisions may use one archive; the first use makes it stay.
update source_archives set used_at = coalesce(used_at, now())
where id = :id and deployment_id = :deployment_id and uploaded_at is not null
returning id

-- name: archive_of_revision
select r.source_tarball_path from revisions r
join deployments d on d.id = r.deployment_id
where r.id = :revision_id and r.deployment_id = :deployment_id and d.workspace_id = :workspace_id

-- name: drop_unused_archives
delete from source_archives
where used_at is null and created_at < now() - make_interval(secs => :older_than_s)

-- name: known_archives
-- Which files on the disk have a row.
select id from source_archives where id = any(:ids)
