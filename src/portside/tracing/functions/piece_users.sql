-- The trigger function that notices deleted runs whose values were in pieces.
create or replace function forget_users_of_pieces() returns trigger
language plpgsql set search_path from current
as $$
begin
    with forgotten as (
        delete from piece_users u using deleted d where u.workspace_id = d.workspace_id and u.run_id = d.id
        returning u.scope
    )
    insert into stale_scopes (scope) select distinct scope from forgotten on conflict do nothing;
    return null;
end
$$;
