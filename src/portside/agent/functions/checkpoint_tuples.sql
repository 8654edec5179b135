-- The ranges of pieces of a value: a series, its first number, and the number after its last.
create or replace function piece_ranges(p_pieces bigint[]) returns table (place int, series bigint, first int, next int)
language sql immutable parallel safe
begin atomic
    select at, p_pieces[at], p_pieces[at + 1]::int, p_pieces[at + 2]::int
    from generate_series(1, coalesce(cardinality(p_pieces), 0), 3) at;
end;

-- The ranges of pieces that a value or a write needs: its own, and those that it has parts of.
create or replace function used_pieces(p_pieces bigint[], p_shared bigint[])
returns table (series bigint, first bigint, next bigint)
language sql immutable parallel safe
begin atomic
    select r.series, r.first, r.next from piece_ranges(p_pieces) r
    union all
    select p_shared[at + 1], p_shared[at + 2], p_shared[at + 2] + 1
    from generate_series(1, coalesce(cardinality(p_shared), 0), 5) at;
end;

-- The data of a value or a write with the parts that are read from pieces.
create or replace function with_shared_parts(p_thread_id text, p_data bytea, p_shared bigint[]) returns bytea
language plpgsql stable strict set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
    v_whole bytea := '';
    v_done int := 0;
    v_part bytea;
begin
    for at in 1 .. cardinality(p_shared) by 5 loop
        select substr(p.data, p_shared[at + 3]::int + 1, p_shared[at + 4]::int) into v_part from checkpoint_pieces p
        where p.thread_id = p_thread_id and p.series = p_shared[at + 1] and p.number = p_shared[at + 2]::int;
        v_whole := v_whole || substr(p_data, v_done + 1, p_shared[at]::int - v_done) || v_part;
        v_done := p_shared[at]::int;
    end loop;
    return v_whole || substr(p_data, v_done + 1);
end $$;

-- The pieces of a value joined, and two numbers of four bytes for each piece: its bytes and its leaves.
-- Pieces are read in the order of their ranges, and inside a range in the order of the primary key: sorting them would
-- copy the value once more.
create or replace function joined_pieces(p_thread_id text, p_pieces bigint[], out data bytea, out sizes bytea)
-- The plan is made once for a connection, maybe while the table is empty.
language plpgsql stable strict set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
    select string_agg(p.data, ''), string_agg(int4send(octet_length(p.data)) || int4send(p.leaves), '')
    into joined_pieces.data, joined_pieces.sizes
    from piece_ranges(p_pieces) r cross join lateral (
        select o.data, o.leaves from checkpoint_pieces o
        where o.thread_id = p_thread_id and o.series = r.series and o.number >= r.first and o.number < r.next
        order by o.number
    ) p;
end $$;

-- A checkpoint with its values and pending writes in one row, both for reading one and for reading a list.
-- `value_datas` are whole values. Of a value in pieces, `value_pieces` has the ranges, and `value_sizes` the bytes and leaves
-- of each piece. With encryption each piece of the data is encrypted by itself.
create or replace view checkpoint_tuples as
select
    c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_id, c.metadata, c.kind, c.body,
    v.channels as value_channels, v.kinds as value_kinds, v.datas as value_datas,
    w.task_ids as write_tasks, w.channels as write_channels, w.kinds as write_kinds, w.datas as write_datas,
    v.pieces as value_pieces, v.sizes as value_sizes
from checkpoints c
left join lateral (
    select
        array_agg(s.channel) as channels, array_agg(s.kind) as kinds,
        array_agg(case
            when s.pieces is not null then s.data || joined.data
            when s.shared is not null then with_shared_parts(c.thread_id, s.data, s.shared)
            else s.data
        end) as datas,
        array_agg(s.pieces::text) as pieces, array_agg(joined.sizes) as sizes
    from unnest(c.channels, c.versions) as entry (channel, version)
    -- `offset 0`: otherwise Postgres may read all values of the thread and compare them with each entry.
    cross join lateral (
        select * from checkpoint_values o
        where o.thread_id = c.thread_id and o.checkpoint_ns = c.checkpoint_ns
            and o.channel = entry.channel and o.version = entry.version
        offset 0
    ) s
    left join lateral joined_pieces(c.thread_id, s.pieces) joined on s.pieces is not null
) v on true
left join lateral (
    select
        array_agg(p.task_id) as task_ids, array_agg(p.channel) as channels,
        array_agg(p.kind) as kinds, array_agg(p.data) as datas
    from (
        select
            o.task_id, o.channel, o.kind,
            case
                when o.pieces is not null then o.data || (joined_pieces(c.thread_id, o.pieces)).data
                when o.shared is not null then with_shared_parts(c.thread_id, o.data, o.shared)
                else o.data
            end as data
        from checkpoint_writes o
        where o.thread_id = c.thread_id and o.checkpoint_ns = c.checkpoint_ns and o.checkpoint_id = c.checkpoint_id
        order by o.task_path, o.task_id, o.idx
    ) p
) w on true;
