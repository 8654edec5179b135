-- Counts the traces of runs that were just written: each at the first receipt of one of its runs, and for the project of
-- its root where that is among them. Sorted, so that two deliveries wait for each other instead of deadlocking.
create function count_traces(
    workspace uuid, key uuid, caller uuid, default_tier text, run_ids uuid[], trace_ids uuid[], project_ids uuid[]
) returns void
language plpgsql
as $$
begin
    insert into traces (workspace_id, trace_id, project_id, api_key_id, user_id, tier)
    select distinct on (w.trace_id) workspace, w.trace_id, w.project_id, key, caller, coalesce(p.trace_tier, default_tier)
    from unnest(run_ids, trace_ids, project_ids) as w (id, trace_id, project_id)
    join projects p on p.id = w.project_id
    where w.trace_id is not null
    order by w.trace_id, w.id = w.trace_id desc, w.id
    on conflict do nothing;
end
$$;

-- Most runs are posted when they begin and patched when they end: where their page has room, a patch touches no index.
alter table runs set (fillfactor = 60);

-- Pages of several projects, and of all of them.
create index runs_of_workspace on runs (workspace_id, (coalesce(start_time, received_at)), id);
