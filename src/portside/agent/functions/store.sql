-- Filters of the store.

-- Whether a value matches a filter, as langgraph defines it: a missing field is null, an object may have more fields than
-- the filter, lists must match item by item. Numbers compare with numbers, text with text; other values do not match.
create or replace function store_matches(item jsonb, filter jsonb) returns boolean
language plpgsql immutable parallel safe set search_path from current as $$
declare
    field record;
begin
    if jsonb_typeof(filter) = 'object' then
        for field in select w.key, w.value from jsonb_each(filter) w loop
            if field.key like '$%' then
                if not store_compares(item, field.key, field.value) then return false; end if;
            elsif jsonb_typeof(item) is distinct from 'object' then
                return false;
            elsif not store_matches(item -> field.key, field.value) then
                return false;
            end if;
        end loop;
        return jsonb_typeof(item) is not distinct from 'object' or filter <> '{}';
    elsif jsonb_typeof(filter) = 'array' then
        if jsonb_typeof(item) is distinct from 'array' or jsonb_array_length(item) <> jsonb_array_length(filter) then
            return false;
        end if;
        for field in select (n - 1)::int as item_index, w.value from jsonb_array_elements(filter) with ordinality w(value, n) loop
            if not store_matches(item -> field.item_index, field.value) then return false; end if;
        end loop;
        return true;
    end if;
    return coalesce(item, 'null') = filter;
end $$;

create or replace function store_compares(item jsonb, operator text, filter jsonb) returns boolean
language plpgsql immutable parallel safe as $$
declare
    sign int;
begin
    if operator = '$eq' then return coalesce(item, 'null') = filter; end if;
    if operator = '$ne' then return coalesce(item, 'null') <> filter; end if;
    if item is null or jsonb_typeof(item) <> jsonb_typeof(filter) then return false; end if;
    if jsonb_typeof(filter) = 'number' then
        sign := case when item::numeric < filter::numeric then -1 when item::numeric > filter::numeric then 1 else 0 end;
    elsif jsonb_typeof(filter) = 'string' then
        sign := case
            when (item #>> '{}') collate "C" < (filter #>> '{}') then -1
            when (item #>> '{}') collate "C" > (filter #>> '{}') then 1
            else 0
        end;
    else
        return false;
    end if;
    return case operator
        when '$gt' then sign > 0 when '$gte' then sign >= 0 when '$lt' then sign < 0 when '$lte' then sign <= 0
    end;
end $$;

-- Whether a value matches a filter that is given in three parts, each of which may be null: what it contains and a JSON
-- path, which are fast, and the whole filter for what those two cannot express. One expression, so that it is inlined.
create or replace function store_matches_filter(item jsonb, contains jsonb, path jsonpath, operands jsonb, filter jsonb)
returns boolean
language sql immutable parallel safe
return case
    when contains is not null and not item @> contains then false
    when path is not null and jsonb_path_match(item, path, operands, true) is not true then false
    else filter is null or store_matches(item, filter)
end;

-- Create the table of vectors. It is created when a search index is configured for the first time: its type comes from the
-- extension `vector`, which a Postgres without an index need not have. A vector is valid only while its item has the
-- revision that it was computed from, so two concurrent writers leave no wrong vector. Wide rows are kept in the page: an
-- exact search reads them all, and fetching each from out of line would take longer than comparing it.
create or replace function make_store_vectors() returns void
language plpgsql set search_path from current as $$
begin
    create table if not exists store_vectors (
        item_id bigint not null references store_items (id) on delete cascade,
        vector_index int not null,
        revision bigint not null,
        embedding vector not null,
        primary key (item_id, vector_index)
    ) with (toast_tuple_target = 8160);
end $$;
