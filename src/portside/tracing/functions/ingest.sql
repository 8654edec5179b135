-- Writing runs.

-- The value of a field after another write for the same run: null never replaces a value; of two values, the one with
-- the higher precedence wins.
create or replace function merge_field(stored anyelement, incoming anyelement, stored_wins boolean) returns anyelement
language sql immutable parallel safe
as $$ select case when stored_wins then coalesce(stored, incoming) else coalesce(incoming, stored) end $$;

-- A run's own part of its dotted order. A run without a start time is ordered by its receipt.
create or replace function dotted_order_part(start_time timestamptz, received_at timestamptz, id uuid) returns text
language sql stable
return to_char(coalesce(start_time, received_at) at time zone 'UTC', 'YYYYMMDD"T"HH24MISSUS"Z"') || id;

-- Count the traces of runs that were just written: each at the first receipt of one of its runs, and for the project of
-- its root where the root is among them. Sorted, so that two requests wait for each other instead of deadlocking.
-- An imported trace is not billed. It is billed as if received now when an ordinary request adds to it; if feedback has made
-- it long-lived before, it is long-lived from now on, because the months before are billed already.
create or replace function count_traces(
    workspace uuid, key uuid, caller uuid, default_tier text, run_ids uuid[], trace_ids uuid[], project_ids uuid[],
    imported boolean default false
) returns void
language plpgsql set search_path from current
as $$
begin
    insert into traces (workspace_id, trace_id, project_id, api_key_id, user_id, tier, is_imported)
    select distinct on (w.trace_id)
        workspace, w.trace_id, w.project_id, key, caller, coalesce(p.trace_tier, default_tier), imported
    from unnest(run_ids, trace_ids, project_ids) as w (id, trace_id, project_id)
    join projects p on p.id = w.project_id
    where w.trace_id is not null
    order by w.trace_id, w.id = w.trace_id desc, w.id
    on conflict do nothing;

    -- Not by the insert, which would lock every trace that exists already.
    if not imported then
        update traces t
        set is_imported = false, received_at = now(), extended_at = null, api_key_id = key, user_id = caller
        where t.workspace_id = workspace and t.trace_id = any(trace_ids) and t.is_imported;
    end if;
end
$$;

-- Whether feedback makes its trace long-lived: it does unless it contains `"extend_trace_retention": false`.
create or replace function extends_trace(body text) returns boolean
language sql immutable
return position('"extend_trace_retention"' in body) = 0
    or parse_json(body) ->> 'extend_trace_retention' is distinct from 'false';
