-- adopts 0010_deleted_workspaces.sql
-- Brings a database of the development version to the baseline; see `kernel/migrations.py`.

alter table deployments rename column held_by to assigned_listener_id;
alter table deployments rename constraint deployments_held_by_fkey to deployments_assigned_listener_id_fkey;
alter table deployments rename column asked_url to requested_url;
alter index deployments_held_by rename to deployments_of_listener;
alter trigger deployments_of_workspaces on deployments rename to refuse_deleted_workspace;

alter index revisions_at_work rename to revisions_in_progress;
alter index revisions_waiting rename to revisions_queued;
alter function record_revision_move() rename to record_revision_transition;
alter trigger revision_created on revisions rename to record_new_revision;
alter trigger revision_moved on revisions rename to record_revision_transition;

alter table revision_moves rename to revision_transitions;
alter sequence revision_moves_id_seq rename to revision_transitions_id_seq;
alter table revision_transitions rename constraint revision_moves_pkey to revision_transitions_pkey;
alter table revision_transitions
    rename constraint revision_moves_revision_id_fkey to revision_transitions_revision_id_fkey;
alter index revision_moves_of_revision rename to revision_transitions_of_revision;

alter table deployment_metrics rename column measures to metrics;

alter table branch_polls rename column looked_at to polled_at;
alter table branch_polls rename column seen_ref to last_ref;
alter table branch_polls rename column seen_commit to last_commit;

update api_keys k set used_by = 'deployment ' || d.name from deployments d where d.service_key_id = k.id;

create table master_key_check (
    is_only boolean primary key default true check (is_only),
    id uuid not null,
    check_sealed bytea not null
);
