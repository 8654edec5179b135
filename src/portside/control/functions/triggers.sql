-- Trigger functions of deployments and revisions.

-- Record a new status. Two changes in one transaction happen at two times, hence not `now()`.
create or replace function record_revision_transition() returns trigger
language plpgsql set search_path from current as $$
begin
    insert into revision_transitions (revision_id, status, reason, at)
    values (new.id, new.status, new.status_message, clock_timestamp());
    return null;
end
$$;

-- No deployment is made in a workspace that is being deleted, whichever transaction is first: the lock waits for the other
-- transaction, and then sees what it did. The SQLSTATE is that of a serialization failure, which callers retry.
create or replace function refuse_deleted_workspace() returns trigger
language plpgsql set search_path from current as $$
begin
    perform from workspaces where id = new.workspace_id and deleted_at is null for key share;
    if not found then
        raise exception 'workspace % is deleted', new.workspace_id using errcode = '40001';
    end if;
    return new;
end
$$;
