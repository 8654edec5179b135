-- Traces that an administrator carried over from another server: they are not billed. The index of what is billed holds
-- only the others, so that counting stays a scan of the index alone.
-- Older versions run: the column has a default. While they run they also bill imported traces, and read more of the table to
-- count.
alter table traces add column is_imported boolean not null default false;

drop index traces_by_receipt;
create index traces_by_receipt on traces (workspace_id, received_at) include (project_id, user_id, api_key_id)
    where not is_imported;
-- Each batch looks whether it adds to an imported trace; where there are few, this index is small.
create index imported_traces on traces (workspace_id, trace_id) where is_imported;
