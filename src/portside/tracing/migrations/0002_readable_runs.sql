-- What projects are told about themselves, and runs as readers see them.
alter table projects
    add column description text,
    add column extra jsonb,
    add column start_time timestamptz,
    add column end_time timestamptz,
    add column reference_dataset_id uuid,
    add column default_dataset_id uuid;

-- User data as jsonb, where it fits into one: null for numbers without end and halves of surrogate pairs.
create function readable_json(value text) returns jsonb
language plpgsql immutable strict
as $$
begin
    return replace(value, '\u0000', '\ufffd')::jsonb;
exception when others then
    return null;
end
$$;

-- What a model used, as clients report it; data that does not speak of it is not parsed.
create function usage_of(extra text, outputs text) returns jsonb
language sql immutable
as $$
    select coalesce(
        case when position('"usage_metadata"' in extra) > 0
             then readable_json(extra) -> 'metadata' -> 'usage_metadata' end,
        case when position('"usage_metadata"' in outputs) > 0 then readable_json(outputs) -> 'usage_metadata' end
    )
$$;

create function amount_of(reported jsonb, key text) returns numeric
language sql immutable
as $$
    select case when jsonb_typeof(reported -> key) = 'number'
                then least(greatest((reported ->> key)::numeric, 0), 1e15) end
$$;

-- When a model began to answer: the first event `new_token` that tells a time.
create function first_token_at(events text) returns timestamptz
language plpgsql stable
as $$
begin
    if events is null or position('"new_token"' in events) = 0 then
        return null;
    end if;
    return (
        select min((event ->> 'time')::timestamptz)
        from jsonb_array_elements(readable_json(events)) as event
        where event ->> 'name' = 'new_token'
    );
exception when others then
    return null;
end
$$;

-- A row without a name or a project is only the place of a run that was not posted yet. A child whose parent never came
-- is shown as a trace of its own.
create view readable_runs as
select r.workspace_id, r.id, r.name, coalesce(r.run_type, 'chain') as run_type, r.status,
       coalesce(r.trace_id, r.id) as trace_id,
       coalesce(r.dotted_order, own_order(r.start_time, r.received_at, r.id)) as dotted_order,
       r.parent_run_id, r.parent_run_id is null as is_root, r.project_id as session_id, r.reference_example_id,
       coalesce(r.start_time, r.received_at) as start_time, r.end_time,
       extract(epoch from r.end_time - coalesce(r.start_time, r.received_at))::float8 as latency,
       coalesce(r.tags, '{}') as tags, r.error, r.inputs, r.outputs, r.extra, r.events, r.serialized,
       first_token_at(r.events) as first_token_time,
       coalesce(trunc(amount_of(u.reported, 'input_tokens')), 0)::bigint as prompt_tokens,
       coalesce(trunc(amount_of(u.reported, 'output_tokens')), 0)::bigint as completion_tokens,
       coalesce(
           trunc(amount_of(u.reported, 'total_tokens')),
           trunc(amount_of(u.reported, 'input_tokens')) + trunc(amount_of(u.reported, 'output_tokens')),
           0
       )::bigint as total_tokens,
       amount_of(u.reported, 'input_cost') as prompt_cost,
       amount_of(u.reported, 'output_cost') as completion_cost,
       amount_of(u.reported, 'total_cost') as total_cost
from runs r
cross join lateral (select usage_of(r.extra, r.outputs) as reported) u
where r.name is not null and r.project_id is not null;

-- Pages of a project go by time; a run that never said when it began is placed by its receipt.
create index runs_by_time on runs (workspace_id, project_id, (coalesce(start_time, received_at)), id);
drop index runs_of_project;
create index runs_of_trace on runs (workspace_id, trace_id);
create index runs_of_parent on runs (workspace_id, parent_run_id) where parent_run_id is not null;
