-- name: append_entry
select append_audit_entry(:entry::jsonb, :only_if_changed::boolean)

-- name: find_entries
-- A page of entries before :cursor, newest first. Without :whole_organization only those of the workspace.
select seq, id, at, organization_id, workspace_id, actor_kind, user_id, user_email, key_id, short_key, session_id, address,
    client, action, object_ids, object_name, fields, outcome, status, error, request_id, count, encode(hash, 'hex') as hash
from audit_log
where (organization_id = :organization_id or (:whole_organization::boolean and organization_id is null))
    and (:whole_organization::boolean or workspace_id = :workspace_id)
    and (:only_workspace::uuid is null or workspace_id = :only_workspace::uuid)
    and (:cursor::bigint is null or seq < :cursor::bigint)
    and (:since::timestamptz is null or at >= :since::timestamptz)
    and (:until::timestamptz is null or at < :until::timestamptz)
    and (:action::text is null or action = :action::text or starts_with(action, :action::text || '.'))
    and (:actions::text[] is null or action = any(:actions::text[]))
    and (:outcome::text is null or outcome = :outcome::text)
    and (:object::text is null or :object::text = any(object_ids) or object_name = :object::text)
    and (:actor::text is null or lower(user_email) = lower(:actor::text) or short_key = :actor::text
        or :actor::text in (user_id::text, key_id::text, session_id::text, actor_kind, address))
order by seq desc
limit :limit

-- name: verify_entries
-- Compute the hashes of up to :limit entries after :after again, oldest first. The first entry that is left has no
-- predecessor to check it by.
with page as (
    select e as entry, lag(e.hash) over (order by e.seq) as before, lag(e.seq) over (order by e.seq) as before_seq
    from audit_log e where e.seq >= :after::bigint order by e.seq limit :limit
)
select (entry).seq as seq, encode((entry).hash, 'hex') as hash,
    before_seq is null or ((entry).seq = before_seq + 1 and (entry).hash = audit_hash(before, entry)) as is_intact
from page order by (entry).seq

-- name: expire_entries
select expire_audit_entries(:before::timestamptz, :most::int)
