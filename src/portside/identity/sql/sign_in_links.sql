-- name: insert_sign_in_link
insert into sign_in_links (id, token_hash, user_id, key_id, expires_at)
values (:id, :token_hash, :user_id, :key_id, :expires_at)

-- name: spend_sign_in_link
-- One statement, so that of two requests with one token only one gets a session. The user or key may be gone by now.
with spent as (
    delete from sign_in_links where token_hash = :token_hash and expires_at > now() returning user_id, key_id
)
select s.user_id, s.key_id from spent s
left join users u on u.id = s.user_id
left join api_keys k on k.id = s.key_id
where u.removed_at is null
  and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())

-- name: delete_expired_sign_in_links
delete from sign_in_links where expires_at < now()
