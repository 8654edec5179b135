-- name: read_cache
select content, extract(epoch from now() - stored_at)::float8 as age_s
from cache_entries
where key = :key and expires_at > now()

-- name: write_cache
-- plain: content (the project's own cache: the SDK promises no encryption, see docs/guides/encrypt-data.md)
insert into cache_entries (key, content, stored_at, expires_at)
values (:key, :content, now(), now() + make_interval(secs => :ttl_s))
on conflict (key) do update
set content = excluded.content, stored_at = excluded.stored_at, expires_at = excluded.expires_at

-- name: delete_old_cache
-- Rows that are being written are left to the next run.
delete from cache_entries
where key in (
    select key from cache_entries where expires_at <= now()
    order by expires_at
    limit :limit
    for update skip locked
)
