-- The key with which a listener called last: a deployment's status says when the platform refuses that key.
alter table listeners add column key_id uuid;
