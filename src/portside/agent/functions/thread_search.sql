-- Searching threads (docs/why/thread-search.md).

-- `p_matched` are threads whose values match although their rows lack some: long lists are in checkpoints
-- (docs/why/long-threads.md).
--
-- Find the threads of one page, in order, and the number of matches. Used for searches that match many threads. The
-- statement is built from fixed parts, so that Postgres plans each search for the filters that it has; a plan for all of
-- them would read the whole table. The graph and the assistant have columns, so they are taken out of the metadata filter.
--
-- Filters that indexes answer alone run as two statements: the page, read in order until it is full, where comparing the
-- JSON is cheaper than computing its fields; and the count from the index, unless the page shows the count already. With
-- any other filter (ids, JSON below the top), the matches are computed once for both: that costs less than computing them
-- twice. An access filter on top-level fields uses the same index; the rest of it is checked on what is left.
create or replace function find_many_threads(
    p_ids uuid[], p_metadata jsonb, p_values jsonb, p_status text, p_sort text, p_limit int, p_offset int,
    p_access jsonb default null, p_matched uuid[] default null, out thread_ids uuid[], out total bigint
)
language plpgsql stable set search_path from current
set jit = off set max_parallel_workers_per_gather = 0 set work_mem = '16MB' set enable_seqscan = on
as $$
declare
    graph text := case jsonb_typeof(p_metadata -> 'graph_id') when 'string' then p_metadata ->> 'graph_id' end;
    assistant text := case jsonb_typeof(p_metadata -> 'assistant_id') when 'string' then p_metadata ->> 'assistant_id' end;
    metadata_filter jsonb := nullif(
        p_metadata - array_remove(array[
            case when graph is not null then 'graph_id' end, case when assistant is not null then 'assistant_id' end
        ], null),
        '{}'
    );
    metadata_fields text[] := indexed_fields(metadata_filter);
    values_fields text[] := indexed_fields(p_values);
    access_equal jsonb := nullif(p_access -> 'equal', '{}');
    access_fields text[] := indexed_fields(access_equal);
    access_checked jsonb := case
        when jsonb_array_length(p_access -> 'rest') > 0 or unindexed_fields(access_equal) is not null then p_access
    end;
    is_indexed boolean := p_ids is null and unindexed_fields(metadata_filter) is null and unindexed_fields(p_values) is null
        and access_checked is null;
    has_fields boolean := metadata_fields is not null or values_fields is not null or access_fields is not null;
    indexed text := concat_ws(
        ' and ', case when has_fields then 'is_temporary is not true' else 'not is_temporary' end,
        case when p_ids is not null then 'thread_id = any ($1)' end,
        case when metadata_fields is not null then 'indexed_fields(metadata) @> $9' end,
        case when values_fields is not null then 'indexed_fields("values") @> $10' end,
        case when access_fields is not null then 'indexed_fields(metadata) @> $11' end,
        case when p_status is not null then 'status = $4' end,
        case when graph is not null then 'graph_id = $7' end,
        case when assistant is not null then 'assistant_id = $8' end
    );
    checked text := concat_ws(
        ' and ', indexed, 'not is_temporary',
        case when metadata_filter is not null then 'metadata @> $2' end,
        case
            when p_matched is not null then '("values" @> $3 or thread_id = any ($14))'
            when p_values is not null then '"values" @> $3'
        end,
        case when access_equal is not null then 'metadata @> $12' end,
        case when access_checked is not null then 'matches_access(metadata, $13)' end
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
    if is_indexed then
        execute format('select array(select thread_id from threads where %s order by %s limit $5 offset $6)', checked, sorted)
        into thread_ids
        using p_ids, metadata_filter, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_fields, values_fields,
            access_fields, access_equal, access_checked, p_matched;
        shown := cardinality(thread_ids);
        if shown < p_limit and (shown > 0 or p_offset = 0) then
            total := p_offset + shown;
            return;
        end if;
        -- The planner counts the cost of checking each row that the index finds, although none is checked. So it would
        -- read the table instead.
        perform set_config('enable_seqscan', 'off', true);
        execute format('select count(*) from threads where %s', indexed)
        into total
        using p_ids, metadata_filter, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_fields, values_fields,
            access_fields, access_equal, access_checked, p_matched;
        return;
    end if;
    execute format(
        'with found as materialized ('
        '    select thread_id, status, created_at, updated_at, state_updated_at from threads where %s'
        ') select array(select thread_id from found order by %s limit $5 offset $6), (select count(*) from found)',
        checked, sorted
    ) into thread_ids, total
    using p_ids, metadata_filter, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_fields, values_fields,
            access_fields, access_equal, access_checked, p_matched;
end $$;

-- Find the threads of one page, in order, and the number of matches. Most searches match few threads: those of one user or
-- of one conversation. Their statement is always the same and planned once for each connection: the candidates come from
-- an index, then are filtered, sorted and counted. Only where an index has more than a few candidates is the search
-- planned for its own filters, which takes longer than to find ten threads.
-- The plan must not depend on parameter values (Postgres would plan again each time), nor on how small the table was when
-- it was made.
create or replace function find_threads(
    p_ids uuid[], p_metadata jsonb, p_values jsonb, p_status text, p_sort text, p_limit int, p_offset int,
    p_access jsonb default null, p_matched uuid[] default null, out thread_ids uuid[], out total bigint
)
language plpgsql stable set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
declare
    few constant int := 500;
    candidate_count bigint;
    access_equal jsonb := nullif(p_access -> 'equal', '{}');
    -- A graph or an assistant is that of many threads.
    metadata_fields text[] := case
        when p_metadata is not null then indexed_fields(p_metadata - '{graph_id,assistant_id}'::text[])
    end || case when access_equal is not null then indexed_fields(access_equal) end;
    values_fields text[] := case when p_values is not null then indexed_fields(p_values) end;
    access_checked jsonb := case when jsonb_array_length(p_access -> 'rest') > 0 then p_access end;
begin
    if p_ids is not null or metadata_fields is not null or values_fields is not null then
        with candidates as materialized (
            select thread_id, status, created_at, updated_at, state_updated_at, metadata, "values" from threads
            where p_ids is not null and thread_id = any (p_ids) and not is_temporary
            union all
            select thread_id, status, created_at, updated_at, state_updated_at, metadata, "values" from threads
            where p_ids is null and metadata_fields is not null and indexed_fields(metadata) @> metadata_fields
                and is_temporary is not true
            union all
            select thread_id, status, created_at, updated_at, state_updated_at, metadata, "values" from threads
            where p_ids is null and metadata_fields is null and indexed_fields("values") @> values_fields
                and is_temporary is not true
            limit few + 1
        ), matching as materialized (
            select thread_id, status, created_at, updated_at, state_updated_at from candidates
            where (p_status is null or status = p_status)
                and (p_metadata is null or metadata @> p_metadata)
                and (p_values is null or "values" @> p_values or thread_id = any (p_matched))
                and (access_equal is null or metadata @> access_equal)
                and (access_checked is null or matches_access(metadata, access_checked))
        )
        select
            array(
                select thread_id from matching
                order by
                    case p_sort when 'status asc' then status end,
                    case p_sort when 'status desc' then status end desc,
                    case p_sort
                        when 'updated_at desc' then updated_at when 'created_at desc' then created_at
                        when 'state_updated_at desc' then state_updated_at when 'status asc' then updated_at
                    end desc,
                    case p_sort
                        when 'updated_at asc' then updated_at when 'created_at asc' then created_at
                        when 'state_updated_at asc' then state_updated_at when 'status desc' then updated_at
                    end,
                    case when p_sort in (
                        'thread_id desc', 'status desc', 'updated_at asc', 'created_at asc', 'state_updated_at asc'
                    ) then thread_id end desc,
                    thread_id
                limit p_limit offset p_offset
            ),
            (select count(*) from matching),
            (select count(*) from candidates)
        into thread_ids, total, candidate_count;
        if candidate_count <= few then
            return;
        end if;
    end if;
    select many.thread_ids, many.total into thread_ids, total
    from find_many_threads(
        p_ids, p_metadata, p_values, p_status, p_sort, p_limit, p_offset, p_access, p_matched
    ) many;
end $$;
