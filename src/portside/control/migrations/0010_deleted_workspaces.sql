-- No deployment is made in a workspace while that is being deleted, whoever comes first: the lock waits for the other
-- transaction, and then sees what it did. The error is the one of transactions that crossed.
create function refuse_deleted_workspace() returns trigger
language plpgsql
as $$
begin
    perform from workspaces where id = new.workspace_id and deleted_at is null for key share;
    if not found then
        raise exception 'workspace % is deleted', new.workspace_id using errcode = '40001';
    end if;
    return new;
end
$$;

create trigger deployments_of_workspaces before insert on deployments
for each row execute function refuse_deleted_workspace();
