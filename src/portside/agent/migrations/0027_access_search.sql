-- Searches among the threads that a caller may see. What a filter wants of plain fields at the top comes out of the same
-- index as what is searched for; anything else is tested on what is left. A server of the release before calls the
-- function without a filter, and finds this one.
drop function find_threads(uuid[], jsonb, jsonb, text, text, int, int);

create function find_threads(
    p_ids uuid[], p_metadata jsonb, p_values jsonb, p_status text, p_sort text, p_limit int, p_offset int,
    p_access jsonb default null, out thread_ids uuid[], out total bigint
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
    access_equal jsonb := nullif(p_access -> 'equal', '{}');
    access_plain text[] := plain_fields(access_equal);
    access_tested jsonb := case
        when jsonb_array_length(p_access -> 'rest') > 0 or other_fields(access_equal) is not null then p_access
    end;
    is_plain boolean := p_ids is null and other_fields(metadata_wanted) is null and other_fields(p_values) is null
        and access_tested is null;
    indexed text := concat_ws(
        ' and ', 'true',
        case when p_ids is not null then 'thread_id = any ($1)' end,
        case when metadata_plain is not null then 'plain_fields(metadata) @> $9' end,
        case when values_plain is not null then 'plain_fields("values") @> $10' end,
        case when access_plain is not null then 'plain_fields(metadata) @> $11' end,
        case when p_status is not null then 'status = $4' end,
        case when graph is not null then 'graph_id = $7' end,
        case when assistant is not null then 'assistant_id = $8' end
    );
    tested text := concat_ws(
        ' and ', indexed,
        case when metadata_wanted is not null then 'metadata @> $2' end,
        case when p_values is not null then '"values" @> $3' end,
        case when access_equal is not null then 'metadata @> $12' end,
        case when access_tested is not null then 'fits(metadata, $13)' end
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
        using p_ids, metadata_wanted, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_plain, values_plain,
            access_plain, access_equal, access_tested;
        shown := cardinality(thread_ids);
        if shown < p_limit and (shown > 0 or p_offset = 0) then
            total := p_offset + shown;
            return;
        end if;
        -- What an index found is never looked at again, though the planner reckons with it and would read the table.
        perform set_config('enable_seqscan', 'off', true);
        execute format('select count(*) from threads where %s', indexed)
        into total
        using p_ids, metadata_wanted, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_plain, values_plain,
            access_plain, access_equal, access_tested;
        return;
    end if;
    execute format(
        'with found as materialized ('
        '    select thread_id, status, created_at, updated_at, state_updated_at from threads where %s'
        ') select array(select thread_id from found order by %s limit $5 offset $6), (select count(*) from found)',
        tested, sorted
    ) into thread_ids, total
    using p_ids, metadata_wanted, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_plain, values_plain,
            access_plain, access_equal, access_tested;
end $$;
