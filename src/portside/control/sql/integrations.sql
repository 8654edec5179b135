-- name: insert_integration
-- Returns no row if the name is taken.
insert into integrations (id, workspace_id, kind, name, base_url, token_sealed)
values (:id, :workspace_id, :kind, :name, :base_url, :token_sealed)
on conflict (workspace_id, name) do nothing
returning id, installation_id, kind, name, base_url, token_sealed is not null as has_token, false as has_webhook

-- name: list_integrations
-- Without the secrets, of which a client learns only whether there are any.
select id, installation_id, kind, name, base_url, token_sealed is not null as has_token,
       webhook_secret_sealed is not null as has_webhook
from integrations where workspace_id = :workspace_id
order by installation_id
limit 1000

-- name: get_integration
select id, installation_id, kind, name, base_url, token_sealed, webhook_secret_sealed
from integrations where id = :id and workspace_id = :workspace_id

-- name: lock_integration_for_use
-- Prevents the delete of an integration while a deployment that uses it is created.
select id, kind, name, base_url from integrations where id = :id and workspace_id = :workspace_id for key share

-- name: update_integration
-- Null keeps a value.
update integrations set
    token_sealed = coalesce(:token_sealed, token_sealed),
    webhook_secret_sealed = coalesce(:webhook_secret_sealed, webhook_secret_sealed),
    updated_at = now()
where id = :id and workspace_id = :workspace_id
returning id, installation_id, kind, name, base_url, token_sealed is not null as has_token,
          webhook_secret_sealed is not null as has_webhook

-- name: lock_integration
select id from integrations where id = :id and workspace_id = :workspace_id for update

-- name: deployments_of_integration
select name from deployments where integration_id = :id order by name limit 5

-- name: delete_integration
delete from integrations where id = :id
