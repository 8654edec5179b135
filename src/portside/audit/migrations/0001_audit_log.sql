-- The audit log. Entries have no foreign keys: they stay when the user, the key or the object is deleted.
create table audit_log (
    seq bigint primary key,
    id uuid not null unique,
    at timestamptz not null,
    organization_id uuid,
    workspace_id uuid,
    actor_kind text not null check (actor_kind in ('user', 'service_key', 'platform', 'anonymous')),
    user_id uuid,
    user_email text,
    key_id uuid,
    short_key text,
    session_id uuid,
    address text,
    client text,
    action text not null,
    object_ids text[] not null,
    object_name text,
    fields text[] not null,
    outcome text not null check (outcome in ('ok', 'refused', 'failed')),
    status int,
    error text,
    request_id text,
    count int not null,
    -- The hash of this entry and of the one before it, so that a change of any entry shows in all later ones.
    hash bytea not null
);

create index audit_log_of_organization on audit_log (organization_id, seq desc);
create index audit_log_of_workspace on audit_log (workspace_id, seq desc);
create index audit_log_at on audit_log (at);

create trigger audit_log_is_append_only before update or delete on audit_log
    for each row execute function refuse_audit_change();
create trigger audit_log_is_not_emptied before truncate on audit_log
    for each statement execute function refuse_audit_change();
