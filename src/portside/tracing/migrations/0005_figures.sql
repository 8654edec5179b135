-- Figures of many runs are not to parse user data: what a model reports is read out of a run when it is written.

-- When a model began to answer: the first event `new_token` that tells a time. A time without an offset is in UTC, so
-- that the answer depends on nothing but the events.
create function first_token_of(events text) returns timestamptz
language plpgsql immutable
as $$
begin
    if events is null or position('"new_token"' in events) = 0 then
        return null;
    end if;
    return (
        select min((t.at || case when t.at ~ '(Z|[+-][0-9]{2}(:?[0-9]{2})?)$' then '' else 'Z' end)::timestamptz)
        from jsonb_array_elements(readable_json(events)) as event
        cross join lateral (select event ->> 'time' as at) t
        where event ->> 'name' = 'new_token' and t.at ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]'
    );
exception when others then
    return null;
end
$$;

alter table runs
    add column usage jsonb generated always as (usage_of(extra, outputs)) stored,
    add column first_token_time timestamptz generated always as (first_token_of(events)) stored;

create or replace view readable_runs as
select r.workspace_id, r.id, r.name, coalesce(r.run_type, 'chain') as run_type, r.status,
       coalesce(r.trace_id, r.id) as trace_id,
       coalesce(r.dotted_order, own_order(r.start_time, r.received_at, r.id)) as dotted_order,
       r.parent_run_id, r.parent_run_id is null as is_root, r.project_id as session_id, r.reference_example_id,
       coalesce(r.start_time, r.received_at) as start_time, r.end_time,
       extract(epoch from r.end_time - coalesce(r.start_time, r.received_at))::float8 as latency,
       coalesce(r.tags, '{}') as tags, r.error, r.inputs, r.outputs, r.extra, r.events, r.serialized,
       r.first_token_time,
       coalesce(trunc(amount_of(r.usage, 'input_tokens')), 0)::bigint as prompt_tokens,
       coalesce(trunc(amount_of(r.usage, 'output_tokens')), 0)::bigint as completion_tokens,
       coalesce(
           trunc(amount_of(r.usage, 'total_tokens')),
           trunc(amount_of(r.usage, 'input_tokens')) + trunc(amount_of(r.usage, 'output_tokens')),
           0
       )::bigint as total_tokens,
       amount_of(r.usage, 'input_cost') as prompt_cost,
       amount_of(r.usage, 'output_cost') as completion_cost,
       amount_of(r.usage, 'total_cost') as total_cost,
       r.usage
from runs r
where r.name is not null and r.project_id is not null;

drop function first_token_at(text);

-- What a run is counted under: one group, or one for each of its tags. Without an attribute all runs are one group.
create function groups_of(
    attribute text, path text, name text, run_type text, tags text[], extra text, session_id uuid
) returns setof text
language sql immutable
as $$
    select case attribute
               when 'name' then name
               when 'run_type' then run_type
               when 'project' then session_id::text
               when 'metadata' then case when position(path in extra) > 0
                                         then readable_json(extra) -> 'metadata' ->> path end
               else ''
           end
    where attribute is distinct from 'tag'
    union all
    select distinct tag from unnest(tags) as tag where attribute = 'tag'
$$;
