-- A key of the organization acts in whichever of its workspaces a request names; its own workspace is where it was made.
alter table api_keys add is_org_scoped boolean not null default false;
