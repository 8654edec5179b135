-- name: deployment_keys_to_reencrypt
-- An encrypted value begins with its version (1 byte) and the id of its key (4 bytes).
select id, service_key_sealed as encrypted from deployments
where substring(service_key_sealed from 2 for 4) <> :key_id
limit :limit for no key update

-- name: reencrypt_deployment_key
update deployments set service_key_sealed = :encrypted where id = :id

-- name: deployment_secrets_to_reencrypt
select id, secrets_sealed as encrypted from deployments
where substring(secrets_sealed from 2 for 4) <> :key_id
limit :limit for no key update

-- name: reencrypt_deployment_secrets
update deployments set secrets_sealed = :encrypted where id = :id

-- name: revision_secrets_to_reencrypt
select id, secrets_sealed as encrypted from revisions
where substring(secrets_sealed from 2 for 4) <> :key_id
limit :limit for no key update

-- name: reencrypt_revision_secrets
update revisions set secrets_sealed = :encrypted where id = :id

-- name: integration_tokens_to_reencrypt
select id, token_sealed as encrypted from integrations
where substring(token_sealed from 2 for 4) <> :key_id
limit :limit for no key update

-- name: reencrypt_integration_token
update integrations set token_sealed = :encrypted where id = :id

-- name: webhook_secrets_to_reencrypt
select id, webhook_secret_sealed as encrypted from integrations
where substring(webhook_secret_sealed from 2 for 4) <> :key_id
limit :limit for no key update

-- name: reencrypt_webhook_secret
update integrations set webhook_secret_sealed = :encrypted where id = :id

-- name: master_key_check_to_reencrypt
select id, check_sealed as encrypted from master_key_check
where substring(check_sealed from 2 for 4) <> :key_id
limit :limit for no key update

-- name: reencrypt_master_key_check
update master_key_check set check_sealed = :encrypted where id = :id

-- name: read_master_key_check
select id, check_sealed as encrypted from master_key_check

-- name: write_master_key_check
insert into master_key_check (id, check_sealed) values (:id, :encrypted) on conflict do nothing

-- name: alert_targets_to_reencrypt
-- The addresses of alert channels: a package above this one encrypts them with the same key.
select id, target_sealed as encrypted from alert_channels
where substring(target_sealed from 2 for 4) <> :key_id
limit :limit for no key update

-- name: reencrypt_alert_target
update alert_channels set target_sealed = :encrypted where id = :id
