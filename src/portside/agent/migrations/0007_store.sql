-- What agents remember across threads. Labels and keys compare byte by byte ("C"): then all that is under a prefix is one
-- range of the primary key, from the prefix itself to its last label followed by the lowest character there is.
-- `ttl_minutes` is how long an item lives after it was written or read. Expired items are invisible at once and swept later.
-- `index_fields` is what the writer asked to be embedded: null for what the configuration says, empty for nothing.
-- `indexed_by` is the generation of the search index that has seen this revision of the item.
create table store_items (
    id bigint generated always as identity unique,
    namespace text[] collate "C" not null check (cardinality(namespace) > 0),
    key text collate "C" not null,
    value jsonb not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    ttl_minutes double precision,
    expires_at timestamptz,
    revision bigint not null default 1,
    index_fields jsonb,
    indexed_by int,
    primary key (namespace, key) include (expires_at)
);
create index store_items_by_update on store_items (updated_at desc, id desc);
create index store_items_to_delete on store_items (expires_at) where expires_at is not null;
create index store_items_to_index on store_items ((coalesce(indexed_by, 0)), id);

-- A generation of the search index: one model with its dimensions and fields. A changed configuration begins a new one,
-- and every item is embedded anew for it.
create table store_indexes (
    generation int primary key,
    embed text not null,
    dims int not null,
    fields text[] not null
);

-- Whether a value has what a filter wants, as langgraph defines it: a missing field is null, objects may have more than is
-- wanted, lists must fit item by item. Numbers compare with numbers, text with text; what cannot be compared does not match.
create function store_matches(item jsonb, wanted jsonb) returns boolean
language plpgsql immutable parallel safe as $$
declare
    field record;
begin
    if jsonb_typeof(wanted) = 'object' then
        for field in select w.key, w.value from jsonb_each(wanted) w loop
            if field.key like '$%' then
                if not store_compares(item, field.key, field.value) then return false; end if;
            elsif jsonb_typeof(item) is distinct from 'object' then
                return false;
            elsif not store_matches(item -> field.key, field.value) then
                return false;
            end if;
        end loop;
        return jsonb_typeof(item) is not distinct from 'object' or wanted <> '{}';
    elsif jsonb_typeof(wanted) = 'array' then
        if jsonb_typeof(item) is distinct from 'array' or jsonb_array_length(item) <> jsonb_array_length(wanted) then
            return false;
        end if;
        for field in select (n - 1)::int as place, w.value from jsonb_array_elements(wanted) with ordinality w(value, n) loop
            if not store_matches(item -> field.place, field.value) then return false; end if;
        end loop;
        return true;
    end if;
    return coalesce(item, 'null') = wanted;
end $$;

create function store_compares(item jsonb, operator text, wanted jsonb) returns boolean
language plpgsql immutable parallel safe as $$
declare
    sign int;
begin
    if operator = '$eq' then return coalesce(item, 'null') = wanted; end if;
    if operator = '$ne' then return coalesce(item, 'null') <> wanted; end if;
    if item is null or jsonb_typeof(item) <> jsonb_typeof(wanted) then return false; end if;
    if jsonb_typeof(wanted) = 'number' then
        sign := case when item::numeric < wanted::numeric then -1 when item::numeric > wanted::numeric then 1 else 0 end;
    elsif jsonb_typeof(wanted) = 'string' then
        sign := case
            when (item #>> '{}') collate "C" < (wanted #>> '{}') then -1
            when (item #>> '{}') collate "C" > (wanted #>> '{}') then 1
            else 0
        end;
    else
        return false;
    end if;
    return case operator
        when '$gt' then sign > 0 when '$gte' then sign >= 0 when '$lt' then sign < 0 when '$lte' then sign <= 0
    end;
end $$;

-- Whether a value fits a filter that comes in three parts, each of which may be missing: what it contains and a JSON path,
-- which are quick, and the whole filter for what those two cannot say. One expression, so that it is inlined.
create function store_fits(item jsonb, contains jsonb, path jsonpath, operands jsonb, wanted jsonb) returns boolean
language sql immutable parallel safe as $$
    select case
        when contains is not null and not item @> contains then false
        when path is not null and jsonb_path_match(item, path, operands, true) is not true then false
        else wanted is null or store_matches(item, wanted)
    end
$$;

-- The vectors of items are in a table of their own, made when a search index is configured first: its type comes from the
-- extension `vector`, which a Postgres without an index need not have. A vector counts only while its item has the
-- revision that it was made of, so that two writers at once leave none behind that would be found. Wide rows are kept in
-- the page: an exact search reads them all, and fetching each from elsewhere would take longer than comparing it.
create function make_store_vectors() returns void language plpgsql as $$
begin
    create table if not exists store_vectors (
        item_id bigint not null references store_items (id) on delete cascade,
        place int not null,
        revision bigint not null,
        embedding vector not null,
        primary key (item_id, place)
    ) with (toast_tuple_target = 8160);
end $$;
