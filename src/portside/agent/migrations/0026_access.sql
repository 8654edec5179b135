-- What a caller may see of what is stored: the filters that the project's authorization handlers return, in the form that
-- `agent/access/filters.py` brings them into: {"equal": {field: value}, "rest": [condition]}. A condition is one of
-- {"op": "eq", key, value}, {"op": "has", key, values}, {"op": "all", of}, {"op": "any", of}; any other holds for nothing.

create function condition_holds(p_metadata jsonb, p_condition jsonb) returns boolean
language plpgsql immutable parallel safe
as $$
declare
    stored jsonb := p_metadata -> (p_condition ->> 'key');
    part jsonb;
begin
    case p_condition ->> 'op'
        when 'eq' then
            return coalesce(stored = p_condition -> 'value', false);
        when 'has' then
            if jsonb_typeof(stored) is distinct from 'array' then
                return false;
            end if;
            return not exists (
                select from jsonb_array_elements(p_condition -> 'values') wanted
                where not exists (select from jsonb_array_elements(stored) one where one = wanted)
            );
        when 'all' then
            for part in select jsonb_array_elements(p_condition -> 'of') loop
                if not condition_holds(p_metadata, part) then
                    return false;
                end if;
            end loop;
            return true;
        when 'any' then
            for part in select jsonb_array_elements(p_condition -> 'of') loop
                if condition_holds(p_metadata, part) then
                    return true;
                end if;
            end loop;
            return false;
        else
            return false;
    end case;
end $$;

-- Whether metadata is as a filter wants it; no filter wants nothing.
create function fits(p_metadata jsonb, p_access jsonb) returns boolean
language plpgsql immutable parallel safe
as $$
begin
    if p_access is null then
        return true;
    end if;
    return coalesce(p_metadata, '{}') @> (p_access -> 'equal')
        and condition_holds(coalesce(p_metadata, '{}'), jsonb_build_object('op', 'all', 'of', p_access -> 'rest'));
end $$;

-- Admit a run for a caller who may not see every thread: a thread that does not fit counts as missing. One that is not
-- there is made with `p_new_thread` where that is given; who makes a thread may run on it.
create function admit_run_for(
    p_access jsonb, p_new_thread jsonb,
    p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_inherited jsonb, p_metadata jsonb, p_kwargs jsonb,
    p_strategy text, p_priority int, p_thread_metadata jsonb, p_thread_config jsonb, p_create_thread boolean,
    p_temporary boolean, p_delay interval, p_key_scope uuid, p_key text, p_key_place int, p_digest text,
    p_admitted_by uuid, p_worker_id uuid, p_lease interval
) returns table (
    outcome text, attempt int, created_at timestamptz, run_id uuid, thread_id uuid, metadata jsonb
)
language plpgsql as $$
#variable_conflict use_column
declare
    is_new boolean := false;
    seen jsonb;
begin
    if p_new_thread is not null then
        insert into threads (thread_id, metadata) values (p_thread_id, p_new_thread) on conflict do nothing;
        is_new := found;
    end if;
    select t.metadata into seen from threads t where t.thread_id = p_thread_id for update;
    if found and not is_new and not fits(seen, p_access) then
        return query select 'missing', 0, now(), p_run_id, p_thread_id, '{}'::jsonb;
        return;
    end if;
    return query select * from admit_run(
        p_run_id, p_thread_id, p_assistant_id, p_inherited, p_metadata, p_kwargs, p_strategy, p_priority,
        p_thread_metadata, p_thread_config, p_create_thread, p_temporary, p_delay, p_key_scope, p_key, p_key_place,
        p_digest, p_admitted_by, p_worker_id, p_lease
    );
end $$;
