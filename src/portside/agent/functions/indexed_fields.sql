-- The fields of a JSON object that the indexes of threads contain. `threads` uses `indexed_fields` in indexes.

-- The scalar fields at the top of a JSON object, as `key:value`: two objects have an entry in common exactly when they
-- have that field with that value. Lists, objects and values that are too long for an index entry are left out.
-- In PL/pgSQL, because Postgres inlines a function in SQL into the index expression at each write, and that attempt took
-- longer than the function itself. It calls none of our functions: index builds and vacuum run without a search_path.
create or replace function indexed_fields(p_json jsonb) returns text[]
language plpgsql immutable parallel safe cost 1000
as $$
begin
    return (
        select array_agg(label) from (
            select key || ':' || case jsonb_typeof(value)
                when 'number' then trim_scale(value::numeric)::text else value::text
            end as label
            from jsonb_each(case jsonb_typeof(p_json) when 'object' then p_json end)
            where jsonb_typeof(value) not in ('object', 'array') and pg_column_size(value) <= 300
        ) field
        where octet_length(label) <= 1000
    );
end $$;

-- The fields of a filter that `indexed_fields` leaves out, or null.
create or replace function unindexed_fields(p_json jsonb) returns jsonb
language sql immutable
return (
    select jsonb_object_agg(key, value) from jsonb_each(p_json)
    where indexed_fields(jsonb_build_object(key, value)) is null
);
