-- Values in pieces (`tracing/pieces.py`). The mark, the scope in 32 characters, the bytes of the whole in 10, and a JSON list:
-- texts, and lists of references to pieces that are joined with commas.

-- The size in bytes of a value. Of a large one the first characters are read alone.
create or replace function value_bytes(stored text) returns bigint
language sql immutable parallel safe
return case when left(stored, 1) = e'\x02' then substr(stored, 34, 10)::bigint else octet_length(stored) end;

-- The text that the client sent.
create or replace function whole_value(stored text) returns text
language plpgsql stable strict parallel safe set search_path from current
as $$
declare
    owner uuid;
    whole text;
begin
    if left(stored, 1) <> e'\x02' then
        return stored;
    end if;
    owner := substr(stored, 2, 32)::uuid;
    select string_agg(
        case json_typeof(part) when 'string' then part #>> '{}' else (
            select string_agg(p.data, ',' order by r.place)
            from json_array_elements_text(part) with ordinality r (digest, place)
            cross join lateral (
                select data from run_pieces where scope = owner and run_pieces.digest = r.digest::uuid offset 0
            ) p
        ) end, '' order by place
    ) into whole
    from json_array_elements(substr(stored, 44)::json) with ordinality x (part, place);
    if octet_length(whole) is distinct from value_bytes(stored) then
        raise exception 'a piece of a value is missing';
    end if;
    return whole;
end
$$;
