-- Deleting runs.

-- Deletes what belongs to deleted runs: attachments, feedback and links for sharing. The two arrays name the runs; they are
-- null if none was deleted. Nested loops find the rows by index: for some thousand runs, the planner would read whole tables.
create or replace function delete_rows_of_runs(workspaces uuid[], run_ids uuid[]) returns void
language sql set enable_hashjoin = off set enable_mergejoin = off
begin atomic
    delete from attachments a using unnest(workspaces, run_ids) as d (workspace_id, run_id)
    where a.workspace_id = d.workspace_id and a.run_id = d.run_id;

    delete from feedback f using unnest(workspaces, run_ids) as d (workspace_id, run_id)
    where f.workspace_id = d.workspace_id and f.run_id = d.run_id;

    delete from shared_runs s using unnest(workspaces, run_ids) as d (workspace_id, run_id)
    where s.workspace_id = d.workspace_id and s.run_id = d.run_id;
end;
