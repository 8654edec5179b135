-- Failed and interrupted runs are found among millions of others. A run that reports no error does not touch this index.
create index runs_with_errors on runs (workspace_id, project_id, (coalesce(start_time, received_at)), id)
where error is not null;
