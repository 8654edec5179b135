-- Threads are kept for as long as their lifetime says, counted from their last change, and are found quickly by whatever
-- a search may ask for (bench/threads.py).

-- The lifetime of threads that name none: what the configuration says, written at each start. It is a row and not a
-- parameter, so that a thread gets it whoever makes it. Threads keep what they were made with.
create table thread_lifetime (
    is_only boolean primary key default true check (is_only),
    ttl_minutes double precision check (ttl_minutes > 0),
    strategy text not null default 'delete' check (strategy in ('delete', 'keep_latest'))
);
insert into thread_lifetime default values;

create function default_ttl_minutes() returns double precision
language sql stable as 'select ttl_minutes from thread_lifetime';

create function default_ttl_strategy() returns text
language sql stable as 'select strategy from thread_lifetime';

-- `pruned_for` is the `updated_at` that the history was last pruned for: until the thread changes there is nothing to do.
alter table threads
    add column ttl_minutes double precision default default_ttl_minutes() check (ttl_minutes > 0),
    add column ttl_strategy text not null default default_ttl_strategy()
        check (ttl_strategy in ('delete', 'keep_latest')),
    add column pruned_for timestamptz;

-- Immutable in fact, because an interval of seconds knows no time zone; an index wants to be told.
create function thread_expiry(p_updated_at timestamptz, p_ttl_minutes double precision) returns timestamptz
language sql immutable as 'select p_updated_at + make_interval(secs => p_ttl_minutes * 60)';

create index threads_to_expire on threads (thread_expiry(updated_at, ttl_minutes))
where ttl_minutes is not null and pruned_for is distinct from updated_at;

-- A thread that is deleted while a run of it is under way may still get a checkpoint or two before the run has stopped.
create table deleted_threads (
    thread_id uuid primary key,
    deleted_at timestamptz not null default now()
);
create index deleted_threads_by_age on deleted_threads (deleted_at);

-- Large values go to a place of their own, so that what searches look through stays small.
alter table threads alter column metadata set storage main;
alter table threads set (toast_tuple_target = 512);

-- The graph and the assistant of a thread are what chat front ends list threads by, and often all threads have the same:
-- counted out of an index they cost a tenth of what they cost as metadata.
alter table threads
    add column graph_id text generated always as (
        case jsonb_typeof(metadata -> 'graph_id') when 'string' then metadata ->> 'graph_id' end
    ) stored,
    add column assistant_id text generated always as (
        case jsonb_typeof(metadata -> 'assistant_id') when 'string' then metadata ->> 'assistant_id' end
    ) stored;
create index threads_by_graph on threads (graph_id);
create index threads_by_assistant on threads (assistant_id);

-- One index for each order of a search; the opposite order reads it backwards.
create index threads_by_status on threads (status, updated_at desc, thread_id);
create index threads_by_creation on threads (created_at desc, thread_id);
create index threads_by_state_update on threads (state_updated_at desc, thread_id);
-- A short list of pending entries: searches have to read all of it.
create index threads_by_values on threads using gin ("values" jsonb_path_ops) with (gin_pending_list_limit = 256);

-- Find the threads of one page, in order, and how many match in all. The statement is put together from fixed parts, so
-- that each search is planned for the filters it has; a plan for all of them would read the whole table.
--
-- The graph and the assistant are taken out of the metadata that is asked for: they have columns.
--
-- Without a filter on JSON the page comes out of an index in order, and the count out of the same index; it is skipped
-- where the page tells it. With one, what matches is looked up once, for the page and the count together: read in order
-- until a page is full, a filter that matches little would read every thread.
create function find_threads(
    p_ids uuid[], p_metadata jsonb, p_values jsonb, p_status text, p_sort text, p_limit int, p_offset int,
    out thread_ids uuid[], out total bigint
)
language plpgsql stable
set jit = off set max_parallel_workers_per_gather = 0
as $$
declare
    graph text := case jsonb_typeof(p_metadata -> 'graph_id') when 'string' then p_metadata ->> 'graph_id' end;
    assistant text := case jsonb_typeof(p_metadata -> 'assistant_id') when 'string' then p_metadata ->> 'assistant_id' end;
    rest jsonb := nullif(
        p_metadata - array_remove(array[
            case when graph is not null then 'graph_id' end, case when assistant is not null then 'assistant_id' end
        ], null),
        '{}'
    );
    wanted text := concat_ws(
        ' and ', 'true',
        case when p_ids is not null then 'thread_id = any ($1)' end,
        case when rest is not null then 'metadata @> $2' end,
        case when p_values is not null then '"values" @> $3' end,
        case when p_status is not null then 'status = $4' end,
        case when graph is not null then 'graph_id = $7' end,
        case when assistant is not null then 'assistant_id = $8' end
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
    if rest is null and p_values is null and p_ids is null then
        execute format('select array(select thread_id from threads where %s order by %s limit $5 offset $6)', wanted, sorted)
        into thread_ids using p_ids, rest, p_values, p_status, p_limit, p_offset, graph, assistant;
        shown := cardinality(thread_ids);
        if shown < p_limit and (shown > 0 or p_offset = 0) then
            total := p_offset + shown;
            return;
        end if;
        execute format('select count(*) from threads where %s', wanted)
        into total using p_ids, rest, p_values, p_status, p_limit, p_offset, graph, assistant;
        return;
    end if;
    execute format(
        'with found as materialized ('
        '    select thread_id, status, created_at, updated_at, state_updated_at from threads where %s'
        ') select array(select thread_id from found order by %s limit $5 offset $6), (select count(*) from found)',
        wanted, sorted
    ) into thread_ids, total using p_ids, rest, p_values, p_status, p_limit, p_offset, graph, assistant;
end $$;
