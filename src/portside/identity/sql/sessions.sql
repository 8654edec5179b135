-- name: insert_session
-- Not if the password that was checked (:password) has been changed since: the change ended all sessions of the old one.
-- The share lock makes the two wait for each other.
insert into sessions (id, user_id, key_id, kind, method, token_hash, address, client, expires_at)
select :id, :user_id, :key_id, :kind, :method, :token_hash, :address, :client, :expires_at
where :password::bytea is null
   or exists (select from users u where u.id = :user_id and u.password = :password::bytea for share)

-- name: session_by_hash
-- The identity behind a session's token. A session that was made with an API key has `key_hash`; what it may do is then
-- read with that key. Only cookies have an idle limit: a command line may be used once a week.
select s.id, s.token_hash, s.expires_at, k.key_hash, u.id as user_id, u.email, u.organization_id,
       o.role as organization_role, w.id as workspace_id, w.display_name as workspace_name, w.tenant_handle,
       m.role as workspace_role
from sessions s
left join api_keys k on k.id = s.key_id
left join users u on u.id = s.user_id
left join organization_members o on o.organization_id = u.organization_id and o.user_id = u.id
left join workspaces w on w.id = :tenant::uuid and w.organization_id = u.organization_id and w.deleted_at is null
left join workspace_members m on m.workspace_id = w.id and m.user_id = u.id
where s.token_hash = :token_hash and s.kind = :kind and s.expires_at > now()
  and (s.kind <> 'cookie' or s.last_used_at > now() - :idle::interval)
  and (s.key_id is not null or o.user_id is not null)

-- name: touch_session
-- At most one write per minute and session.
update sessions set last_used_at = now() where id = :id and last_used_at < now() - interval '1 minute'

-- name: list_sessions
-- The sessions of a user, those made with a service key, or all of the organization, newest first.
select s.id, s.user_id, coalesce(u.email, '') as user_email, coalesce(k.short_key, '') as short_key, s.kind, s.method,
       s.address, s.client, s.created_at, s.last_used_at, s.expires_at
from sessions s
left join users u on u.id = s.user_id
left join api_keys k on k.id = s.key_id
where coalesce(u.organization_id, k.organization_id) = :organization_id and s.expires_at > now()
  and (s.kind <> 'cookie' or s.last_used_at > now() - :idle::interval)
  and (k.id is null or (k.revoked_at is null and (k.expires_at is null or k.expires_at > now())))
  and (:user_id::uuid is null or s.user_id = :user_id::uuid)
  and (:key_id::uuid is null or s.key_id = :key_id::uuid)
order by s.created_at desc, s.id desc
limit 1000

-- name: end_session
-- A session belongs to the organization of its user or of its key; those of others count as missing.
delete from sessions s
where s.id = :id
  and (:user_id::uuid is null or s.user_id = :user_id::uuid)
  and (:key_id::uuid is null or s.key_id = :key_id::uuid)
  and :organization_id = coalesce(
      (select u.organization_id from users u where u.id = s.user_id),
      (select k.organization_id from api_keys k where k.id = s.key_id)
  )
returning s.id

-- name: end_session_of_token
-- A browser that signs in again, or out, ends the session that its cookie named.
delete from sessions where token_hash = :token_hash and kind = 'cookie' returning id

-- name: delete_expired_sessions
delete from sessions
where expires_at < now() or (kind = 'cookie' and last_used_at < now() - :idle::interval)
