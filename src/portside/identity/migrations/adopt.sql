-- adopts 0003_deleted_workspaces.sql
-- Brings a database of the development version to the baseline; see `kernel/migrations.py`.

alter table api_keys add column used_by text;
update api_keys set used_by = 'the platform''s own listener' where description = 'The platform''s own listener';
