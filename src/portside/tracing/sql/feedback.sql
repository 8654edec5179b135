-- name: list_feedback
select id, run_id, trace_id, session_id, key, body, modified_at
from readable_feedback
where workspace_id = :workspace_id
  and (:ids::uuid[] is null or id = any(:ids::uuid[]))
  and (:runs::uuid[] is null or run_id = any(:runs::uuid[]))
  and (:sessions::text[] is null or session_id = any(:sessions::text[]))
  and (:keys::text[] is null or key = any(:keys::text[]))
  and (:sources::text[] is null or source = any(:sources::text[]))
  and (:users::text[] is null or user_id = any(:users::text[]))
  and (:has_comment::boolean is null or has_comment = :has_comment::boolean)
  and (:has_score::boolean is null or (score is not null) = :has_score::boolean)
  and (:level::text is null or (run_id is null) = (:level::text = 'session'))
order by modified_at desc, id desc
limit :limit::int offset :offset::int

-- name: feedback_to_change
-- Locked, so that two changes of different fields do not undo each other.
select body from feedback where workspace_id = :workspace_id and id = :feedback_id for update

-- name: change_feedback
-- The time of the last change never goes back.
update feedback set body = :body, modified_at = greatest(modified_at, :modified_at::timestamptz)
where workspace_id = :workspace_id and id = :feedback_id

-- name: delete_feedback
delete from feedback where workspace_id = :workspace_id and id = :feedback_id

-- name: create_feedback_tokens
insert into feedback_tokens (id, workspace_id, run_id, key, config, feedback_id, expires_at)
select x.id, :workspace_id, x.run_id, x.key, x.config::jsonb, x.feedback_id, x.expires_at
from unnest(
    :id::uuid[], :run_id::uuid[], :key::text[], :config::text[], :feedback_id::uuid[], :expires_at::timestamptz[]
) as x (id, run_id, key, config, feedback_id, expires_at)

-- name: feedback_tokens_of_run
select id, key as feedback_key, expires_at
from feedback_tokens
where workspace_id = :workspace_id and run_id = :run_id and expires_at > now()
order by created_at desc, id
limit :limit::int offset :offset::int

-- name: delete_expired_feedback_tokens
delete from feedback_tokens where id in (
    select id from feedback_tokens where expires_at < now() order by expires_at limit :batch::int for update skip locked
)

-- name: feedback_token
-- Used without an API key: the id of the token is the credential, and its row names the workspace.
select workspace_id, run_id, key, config, feedback_id from feedback_tokens where id = :token and expires_at > now()
