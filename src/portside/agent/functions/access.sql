-- Access filters: the filters that the project's authorization handlers return, in the form that `read_filter` of
-- `executor/access_filters.py` gives them: {"equal": {field: value}, "rest": [condition]}. A condition is one of
-- {"op": "eq", key, value}, {"op": "has", key, values}, {"op": "all", of}, {"op": "any", of}. Any other matches nothing.
create or replace function matches_condition(p_metadata jsonb, p_condition jsonb) returns boolean
language plpgsql immutable parallel safe set search_path from current
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
                select from jsonb_array_elements(p_condition -> 'values') filter
                where not exists (select from jsonb_array_elements(stored) one where one = filter)
            );
        when 'all' then
            for part in select jsonb_array_elements(p_condition -> 'of') loop
                if not matches_condition(p_metadata, part) then
                    return false;
                end if;
            end loop;
            return true;
        when 'any' then
            for part in select jsonb_array_elements(p_condition -> 'of') loop
                if matches_condition(p_metadata, part) then
                    return true;
                end if;
            end loop;
            return false;
        else
            return false;
    end case;
end $$;

-- Whether metadata matches an access filter. Without a filter everything matches.
create or replace function matches_access(p_metadata jsonb, p_access jsonb) returns boolean
language plpgsql immutable parallel safe set search_path from current
as $$
begin
    if p_access is null then
        return true;
    end if;
    return coalesce(p_metadata, '{}') @> (p_access -> 'equal')
        and matches_condition(coalesce(p_metadata, '{}'), jsonb_build_object('op', 'all', 'of', p_access -> 'rest'));
end $$;
