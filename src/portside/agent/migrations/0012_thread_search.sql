-- Searches by the plain fields of metadata and values come out of indexes that need no second look, and a thread's values
-- are no longer taken apart each time that the thread is written (docs/why/thread-search.md).

-- The plain fields at the top of a JSON object, `key:value` each: two objects have an entry in common exactly when they
-- have that field with that value. Lists, objects and what is too long for an index entry are left out.
-- Index builds and vacuum run this without a search path, so it calls nothing of ours.
create function plain_fields(p_json jsonb) returns text[]
language sql immutable parallel safe cost 1000
as $$
    select array_agg(label) from (
        select key || ':' || case jsonb_typeof(value)
            when 'number' then trim_scale(value::numeric)::text else value::text
        end as label
        from jsonb_each(case jsonb_typeof(p_json) when 'object' then p_json end)
        where jsonb_typeof(value) not in ('object', 'array') and pg_column_size(value) <= 300
    ) field
    where octet_length(label) <= 1000
$$;

-- What of a filter the function above leaves out, or null.
create function other_fields(p_json jsonb) returns jsonb
language sql immutable
as $$
    select jsonb_object_agg(key, value) from jsonb_each(p_json)
    where plain_fields(jsonb_build_object(key, value)) is null
$$;

drop index threads_by_values;
create index threads_by_plain_metadata on threads using gin (plain_fields(metadata)) with (gin_pending_list_limit = 256);
create index threads_by_plain_values on threads using gin (plain_fields("values")) with (gin_pending_list_limit = 256);

-- Find the threads of one page, in order, and how many match in all. The statement is put together from fixed parts, so
-- that each search is planned for the filters it has; a plan for all of them would read the whole table.
--
-- The graph and the assistant are taken out of the metadata that is asked for: they have columns.
--
-- What indexes answer alone is looked up twice: the page in order until it is full, where the plain test of JSON is
-- cheaper than taking its fields, and the count out of the index, unless the page tells it. Of anything else (ids, and
-- JSON below the top) what matches is looked up once, for both: looking at it twice would cost more than sorting it.
create or replace function find_threads(
    p_ids uuid[], p_metadata jsonb, p_values jsonb, p_status text, p_sort text, p_limit int, p_offset int,
    out thread_ids uuid[], out total bigint
)
language plpgsql stable
set jit = off set max_parallel_workers_per_gather = 0 set work_mem = '16MB' set enable_seqscan = on
as $$
declare
    graph text := case jsonb_typeof(p_metadata -> 'graph_id') when 'string' then p_metadata ->> 'graph_id' end;
    assistant text := case jsonb_typeof(p_metadata -> 'assistant_id') when 'string' then p_metadata ->> 'assistant_id' end;
    metadata_wanted jsonb := nullif(
        p_metadata - array_remove(array[
            case when graph is not null then 'graph_id' end, case when assistant is not null then 'assistant_id' end
        ], null),
        '{}'
    );
    metadata_plain text[] := plain_fields(metadata_wanted);
    values_plain text[] := plain_fields(p_values);
    is_plain boolean := p_ids is null and other_fields(metadata_wanted) is null and other_fields(p_values) is null;
    indexed text := concat_ws(
        ' and ', 'true',
        case when p_ids is not null then 'thread_id = any ($1)' end,
        case when metadata_plain is not null then 'plain_fields(metadata) @> $9' end,
        case when values_plain is not null then 'plain_fields("values") @> $10' end,
        case when p_status is not null then 'status = $4' end,
        case when graph is not null then 'graph_id = $7' end,
        case when assistant is not null then 'assistant_id = $8' end
    );
    tested text := concat_ws(
        ' and ', indexed,
        case when metadata_wanted is not null then 'metadata @> $2' end,
        case when p_values is not null then '"values" @> $3' end
    );
    sorted text := case p_sort
        when 'thread_id asc' then 'thread_id'
        when 'thread_id desc' then 'thread_id desc'
        when 'status asc' then 'status, updated_at desc, thread_id'
        when 'status desc' then 'status desc, updated_at, thread_id desc'
        when 'created_at asc' then 'created_at, thread_id desc'
        when 'created_at desc' then 'created_at desc, thread_id'
        when 'state_updated_at asc' then 'state_updated_at, thread_id desc'
        when 'state_updated_at desc' then 'state_updated_at desc, thread_id'
        when 'updated_at asc' then 'updated_at, thread_id desc'
        else 'updated_at desc, thread_id'
    end;
    shown int;
begin
    if is_plain then
        execute format('select array(select thread_id from threads where %s order by %s limit $5 offset $6)', tested, sorted)
        into thread_ids
        using p_ids, metadata_wanted, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_plain, values_plain;
        shown := cardinality(thread_ids);
        if shown < p_limit and (shown > 0 or p_offset = 0) then
            total := p_offset + shown;
            return;
        end if;
        -- What an index found is never looked at again, though the planner reckons with it and would read the table.
        perform set_config('enable_seqscan', 'off', true);
        execute format('select count(*) from threads where %s', indexed)
        into total
        using p_ids, metadata_wanted, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_plain, values_plain;
        return;
    end if;
    execute format(
        'with found as materialized ('
        '    select thread_id, status, created_at, updated_at, state_updated_at from threads where %s'
        ') select array(select thread_id from found order by %s limit $5 offset $6), (select count(*) from found)',
        tested, sorted
    ) into thread_ids, total
    using p_ids, metadata_wanted, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_plain, values_plain;
end $$;

-- What a run writes counts only while its row is there, which goes with the thread: nothing comes after a deletion.
drop table deleted_threads;
