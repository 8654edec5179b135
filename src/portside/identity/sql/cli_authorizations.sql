-- name: insert_cli_authorization
-- Nobody is signed in yet when a device code is made, so open ones are limited by address, and altogether.
insert into cli_authorizations (
    id, flow, code_hash, user_code_hash, code_challenge, redirect_uri, host_name, address, expires_at, interval_s,
    decision, user_id, key_id
)
select :id, :flow, :code_hash, :user_code_hash, :code_challenge, :redirect_uri, :host_name, :address, :expires_at,
       :interval_s, :decision, :user_id, :key_id
where :decision::text is not null or (
    select count(*) < :max_open and count(*) filter (where address = :address) < :max_open_of_address
    from cli_authorizations where decision is null and expires_at > now()
)
returning id

-- name: delete_old_cli_authorizations
-- A terminal that asks late still learns that its code has expired.
with without_attempts as (
    delete from user_code_attempts where attempted_at < now() - interval '1 hour'
)
delete from cli_authorizations where expires_at < now() - interval '1 hour'

-- name: insert_user_code_attempt
insert into user_code_attempts (caller_id) values (:caller_id)

-- name: count_user_code_attempts
select count(*) from user_code_attempts
where caller_id = :caller_id and attempted_at > now() - :within::interval

-- name: open_cli_authorization
-- A code that was decided or has expired is as unknown as any other.
select id, user_code_hash, host_name, address from cli_authorizations
where user_code_hash = :user_code_hash and decision is null and expires_at > now()

-- name: decide_cli_authorization
-- Returns no row if somebody has decided meanwhile, or the code has expired.
update cli_authorizations set decision = :decision, user_id = :user_id, key_id = :key_id
where id = :id and decision is null and expires_at > now()
returning id

-- name: poll_cli_authorization
-- A terminal that asks too early has to wait longer from then on.
with asked as (
    select id, poll_after > now() as is_early from cli_authorizations
    where code_hash = :code_hash and flow = 'device'
    for update
)
update cli_authorizations c
set interval_s = least(c.interval_s + case when asked.is_early then :slow_down_s::integer else 0 end, 300),
    poll_after = now() + make_interval(
        secs => least(c.interval_s + case when asked.is_early then :slow_down_s::integer else 0 end, 300)
    )
from asked
where c.id = asked.id
returning c.decision, c.expires_at <= now() as is_expired, asked.is_early, c.session_id

-- name: lock_cli_authorization
-- Of two exchanges of one code at the same time, the second one waits here and then sees the session.
select id, code_hash, code_challenge, redirect_uri, host_name, decision, user_id, key_id, session_id,
       expires_at <= now() as is_expired
from cli_authorizations
where code_hash = :code_hash and flow = :flow
for update

-- name: set_session_of_cli_authorization
update cli_authorizations set session_id = :session_id where id = :id

-- name: revoke_cli_authorization
-- The code is spent, and so is the session that it gave.
with revoked as (
    delete from cli_authorizations where id = :id returning session_id
)
delete from sessions s using revoked where s.id = revoked.session_id
