-- Writing the store, and its filters.

-- Write one batch of puts and deletes (a null value), each item once; return what was put. Batches of more than one item
-- first take advisory locks, 256 buckets in order, so that two batches cannot deadlock. An expired item counts as deleted,
-- so an item that is put in its place gets a new time of creation. A generation of the search index says that the caller
-- writes the items' vectors in the same statement.
create or replace function put_store_items(
    p_namespaces text[], p_keys text[], p_values text[], p_ttls float8[], p_fields text[], p_generation int
) returns table (batch_index int, id bigint, revision bigint)
-- A batch is small. For the default of 1,000 rows the planner would read the whole table of vectors.
language plpgsql rows 10 set search_path from current as $$
#variable_conflict use_column
begin
    return query
    with given as (
        select string_to_array(g.namespace, '.') as namespace, g.key, g.value::jsonb as value, g.ttl, g.fields, g.n
        from unnest(p_namespaces, p_keys, p_values, p_ttls, p_fields) with ordinality
            as g (namespace, key, value, ttl, fields, n)
    ), locks as materialized (
        select pg_advisory_xact_lock(hashtext('portside.store_items'), b.bucket)
        from (
            select distinct hashtext(array_to_string(g.namespace, '.') || '.' || g.key) & 255 as bucket from given g
            where (select count(*) from given) > 1
            order by bucket
        ) b
    ), deleted as (
        delete from store_items s using given g
        where g.value is null and s.namespace = g.namespace and s.key = g.key and (select count(*) from locks) >= 0
    ), stored as (
        insert into store_items as s (namespace, key, value, ttl_minutes, expires_at, index_fields, indexed_by)
        select
            g.namespace, g.key, g.value, g.ttl, now() + g.ttl * interval '1 minute', g.fields::jsonb, p_generation
        from given g, (select count(*) from locks) as after_that
        where g.value is not null
        order by g.namespace, g.key
        on conflict (namespace, key) do update set
            value = excluded.value,
            created_at = case when s.expires_at <= now() then now() else s.created_at end,
            updated_at = now(),
            ttl_minutes = excluded.ttl_minutes,
            expires_at = excluded.expires_at,
            revision = s.revision + 1,
            index_fields = excluded.index_fields,
            indexed_by = excluded.indexed_by
        returning s.id, s.namespace, s.key, s.revision
    )
    select g.n::int, s.id, s.revision from stored s join given g using (namespace, key);
end $$;

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
