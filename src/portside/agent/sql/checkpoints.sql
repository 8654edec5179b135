-- name: read_checkpoint
-- replaceable: checkpoints
-- Every run starts with this query. Both forms, a named checkpoint and the latest, are one range of the primary key.
select * from checkpoint_tuples
where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns
    and checkpoint_id between coalesce(:checkpoint_id::text, '') and coalesce(:checkpoint_id::text, '~')
order by checkpoint_id desc limit 1

-- name: read_states
-- replaceable: checkpoints
-- A batch of checkpoints, each with the graph of its thread and a version. The rest of a row is left out if the caller
-- already knows that version. The version is made of the xmin and ctid of each row that the state is computed from, so
-- every change of one of these rows changes it. There is none if the state depends on other checkpoints, as with
-- channels that are stored as a chain of writes. The limits keep Postgres from reading first and comparing afterwards.
-- The arrays are selected, which hides their lengths from the planner: it would plan each statement with few threads
-- again, which takes four times as long as executing it.
select requested.place::int, thread.graph_id, latest.state_version, kept.*
from unnest(
    (select :thread_ids::uuid[]), (select :namespaces::text[]), (select :checkpoint_ids::text[]), (select :known::text[])
) with ordinality as requested (thread_id, checkpoint_ns, checkpoint_id, known, place)
join lateral (
    select t.metadata ->> 'graph_id' as graph_id from threads t
    where t.thread_id = requested.thread_id and t.delete_after is null limit 1
) thread on true
left join lateral (
    select
        c.thread_id, c.checkpoint_ns, c.checkpoint_id,
        case when not c.metadata ? 'counters_since_delta_snapshot' then concat_ws(
            ' ', thread.graph_id, c.checkpoint_id, c.xmin, c.ctid,
            (
                select string_agg(w.xmin::text || w.ctid::text, ' ' order by w.ctid) from checkpoint_writes w
                where w.thread_id = c.thread_id and w.checkpoint_ns = c.checkpoint_ns
                    and w.checkpoint_id = c.checkpoint_id
            )
        ) end as state_version
    from checkpoints c
    where c.thread_id = requested.thread_id::text and c.checkpoint_ns = requested.checkpoint_ns
        and c.checkpoint_id between coalesce(requested.checkpoint_id, '') and coalesce(requested.checkpoint_id, '~')
        and c.metadata ->> 'source' is distinct from 'deleted'
    order by c.checkpoint_id desc limit 1
) latest on true
left join lateral (
    select v.* from checkpoint_tuples v
    where v.thread_id = latest.thread_id and v.checkpoint_ns = latest.checkpoint_ns
        and v.checkpoint_id = latest.checkpoint_id
        and (requested.known is null or latest.state_version is distinct from requested.known)
    limit 1
) kept on true

-- name: list_checkpoints
-- searched: filter as checkpoint.metadata
-- plain: before (the id of a checkpoint)
-- replaceable: checkpoints
-- One page, newest first; the last row of a page is where the next one starts.
select * from checkpoint_tuples
where (:thread_id::text is null or thread_id = :thread_id)
    and (:checkpoint_ns::text is null or checkpoint_ns = :checkpoint_ns)
    and (:checkpoint_id::text is null or checkpoint_id = :checkpoint_id)
    and (:before::text is null or checkpoint_id < :before)
    and (:filter::text is null or metadata @> :filter::text::jsonb)
    and metadata ->> 'source' is distinct from 'deleted'
    and (:after_id::text is null or (checkpoint_id, thread_id, checkpoint_ns) < (:after_id, :after_thread::text, :after_ns::text))
order by checkpoint_id desc, thread_id desc, checkpoint_ns desc limit :page_size::int

-- name: write_checkpoints
-- plain: c_metadata, c_body, v_data, p_data, w_data (encrypted by the checkpointer in the context of the run that wrote it)
-- plain: v_pieces, v_shared, w_pieces, w_shared, p_thread, p_series, p_number, p_leaves (ids and numbers)
-- plain: v_thread, v_channel, v_version, v_kind, w_thread, w_checkpoint, w_task, w_path, w_run (ids, names and versions)
-- plain: w_channel, w_kind, c_thread, c_parent, c_kind, c_channels, c_versions (ids, names and versions)
-- The checkpoints, values, pieces and writes of many threads in one statement. Rows are written only if the run that produced
-- them still is at the same attempt, or if no run produced them. The locks keep runs from being given to another worker
-- meanwhile; every statement locks runs in the order of their threads.
-- A version is never used for two values, so an existing value is the same one. An ordinary write keeps its first row; a
-- special one (negative index) is replaced, since a task may be interrupted again.
with written as (
    select thread_id, run_id, attempt
    from unnest(:threads::text[], :runs::uuid[], :attempts::int[]) as m (thread_id, run_id, attempt)
), of_current_runs as (
    select written.thread_id from runs r join written on r.run_id = written.run_id and r.attempt = written.attempt
    where r.status = 'running' order by r.thread_id for share of r
), writable as materialized (
    select thread_id from of_current_runs union all select thread_id from written where run_id is null
), new_values as (
    insert into checkpoint_values (thread_id, checkpoint_ns, channel, version, kind, data, pieces, shared)
    select v.thread_id, v.checkpoint_ns, v.channel, v.version, v.kind, v.data, v.pieces::bigint[], v.shared::bigint[]
    from unnest(
        :v_thread::text[], :v_ns::text[], :v_channel::text[], :v_version::text[], :v_kind::text[], :v_data::bytea[],
        :v_pieces::text[], :v_shared::text[]
    ) as v (thread_id, checkpoint_ns, channel, version, kind, data, pieces, shared)
    where v.thread_id in (select thread_id from writable)
    on conflict do nothing
), new_pieces as (
    insert into checkpoint_pieces (thread_id, series, number, leaves, data)
    select p.* from unnest(:p_thread::text[], :p_series::bigint[], :p_number::int[], :p_leaves::int[], :p_data::bytea[])
        as p (thread_id, series, number, leaves, data)
    where p.thread_id in (select thread_id from writable)
    on conflict do nothing
), new_writes as (
    insert into checkpoint_writes (
        thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, channel, kind, data, pieces, shared
    )
    select
        w.thread_id, w.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.run_id, w.channel, w.kind, w.data,
        w.pieces::bigint[], w.shared::bigint[]
    from unnest(
        :w_thread::text[], :w_ns::text[], :w_checkpoint::text[], :w_task::text[], :w_idx::int[], :w_path::text[],
        :w_run::text[], :w_channel::text[], :w_kind::text[], :w_data::bytea[], :w_pieces::text[],
        :w_shared::text[]
    ) as w (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, channel, kind, data, pieces, shared)
    where w.thread_id in (select thread_id from writable)
    on conflict (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) do update set
        channel = excluded.channel, kind = excluded.kind, data = excluded.data,
        pieces = excluded.pieces, shared = excluded.shared,
        task_path = excluded.task_path, run_id = excluded.run_id
    where excluded.idx < 0
), new_checkpoints as (
    insert into checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_id, metadata, kind, body, channels, versions
    )
    select
        c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_id, c.metadata::jsonb, c.kind, c.body,
        c.channels::text[], c.versions::text[]
    from unnest(
        :c_thread::text[], :c_ns::text[], :c_id::text[], :c_parent::text[], :c_metadata::text[], :c_kind::text[],
        :c_body::bytea[], :c_channels::text[], :c_versions::text[]
    ) as c (thread_id, checkpoint_ns, checkpoint_id, parent_id, metadata, kind, body, channels, versions)
    where c.thread_id in (select thread_id from writable)
    on conflict (thread_id, checkpoint_ns, checkpoint_id) do update set
        parent_id = excluded.parent_id, metadata = excluded.metadata, kind = excluded.kind, body = excluded.body,
        channels = excluded.channels, versions = excluded.versions
)
select thread_id from writable

-- name: delete_checkpoints_of_threads
-- Tables of checkpoints have no foreign keys, so each is deleted here, all in one statement.
with values_gone as (
    delete from checkpoint_values where thread_id = any(:thread_ids::text[])
), pieces_gone as (
    delete from checkpoint_pieces where thread_id = any(:thread_ids::text[])
), writes_gone as (
    delete from checkpoint_writes where thread_id = any(:thread_ids::text[])
)
delete from checkpoints where thread_id = any(:thread_ids::text[])

-- name: delete_checkpoints_of_runs
-- A run leaves its own checkpoints, and writes on the checkpoint that it started from. Both are deleted, with the values that
-- no other checkpoint uses and the pieces that are in no other value. With a thread id, copies of the thread keep theirs:
-- they have the same run ids.
-- A checkpoint that counts steps since a snapshot has channels that are stored as a chain of writes, on the checkpoints
-- before it. Where the chain of one that stays goes through deleted ones, those are only emptied: they keep what such
-- channels need, and get the source 'deleted', which hides them. They are deleted when nothing needs them any more.
with recursive touched as materialized (
    select thread_id, checkpoint_ns from checkpoints
    where metadata ->> 'run_id' = any(:run_ids::text[]) and (:thread_id::text is null or thread_id = :thread_id)
    union
    select thread_id, checkpoint_ns from checkpoint_writes
    where run_id = any(:run_ids::text[]) and (:thread_id::text is null or thread_id = :thread_id)
), partial as materialized (
    select
        c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_id, c.metadata -> 'counters_since_delta_snapshot' as counters
    from touched join checkpoints c using (thread_id, checkpoint_ns)
    where c.metadata ? 'counters_since_delta_snapshot'
), candidates as materialized (
    select c.thread_id, c.checkpoint_ns, c.checkpoint_id
    from touched join checkpoints c using (thread_id, checkpoint_ns)
    where c.metadata ->> 'run_id' = any(:run_ids::text[]) or c.metadata ->> 'source' = 'deleted'
), needed as (
    select p.thread_id, p.checkpoint_ns, p.parent_id as checkpoint_id
    from partial p
    where (p.thread_id, p.checkpoint_ns, p.parent_id) in (select c.* from candidates c)
        and (p.thread_id, p.checkpoint_ns, p.checkpoint_id) not in (select c.* from candidates c)
    union
    select p.thread_id, p.checkpoint_ns, p.parent_id
    from needed n join partial p using (thread_id, checkpoint_ns, checkpoint_id)
    where (p.thread_id, p.checkpoint_ns, p.parent_id) in (select c.* from candidates c)
), gone as materialized (
    select c.* from candidates c except select n.* from needed n
), chained as materialized (
    -- The checkpoints and channels whose writes and values a checkpoint that stays is read with.
    select distinct p.thread_id, p.checkpoint_ns, p.parent_id as checkpoint_id, counted.channel
    from partial p cross join jsonb_object_keys(p.counters) as counted (channel)
    where p.parent_id is not null
        and (p.thread_id, p.checkpoint_ns, p.checkpoint_id) not in (select g.* from gone g)
), checkpoints_gone as (
    delete from checkpoints c
    where (c.thread_id, c.checkpoint_ns, c.checkpoint_id) in (select g.* from gone g)
), checkpoints_emptied as (
    update checkpoints c set
        metadata = jsonb_build_object(
            'source', 'deleted', 'step', c.metadata -> 'step', 'parents', coalesce(c.metadata -> 'parents', '{}')
        ) || case when c.metadata ? 'counters_since_delta_snapshot' then jsonb_build_object(
            'counters_since_delta_snapshot', c.metadata -> 'counters_since_delta_snapshot'
        ) else '{}' end,
        (channels, versions) = (
            select coalesce(array_agg(h.channel), '{}'), coalesce(array_agg(h.version), '{}')
            from unnest(c.channels, c.versions) as h (channel, version)
            where (c.thread_id, c.checkpoint_ns, c.checkpoint_id, h.channel) in (select k.* from chained k)
        )
    where (c.thread_id, c.checkpoint_ns, c.checkpoint_id) in (select n.* from needed n)
), writes_gone as (
    delete from checkpoint_writes w
    where (
        (w.run_id = any(:run_ids::text[]) and (:thread_id::text is null or w.thread_id = :thread_id))
        or (w.thread_id, w.checkpoint_ns, w.checkpoint_id) in (select c.* from candidates c)
    ) and (w.thread_id, w.checkpoint_ns, w.checkpoint_id, w.channel) not in (select k.* from chained k)
    returning w.thread_id, w.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.pieces
), used as (
    select c.thread_id, c.checkpoint_ns, h.channel, h.version
    from touched t
    join checkpoints c using (thread_id, checkpoint_ns)
    cross join unnest(c.channels, c.versions) as h (channel, version)
    where (c.thread_id, c.checkpoint_ns, c.checkpoint_id) not in (select g.* from gone g) and (
        (c.thread_id, c.checkpoint_ns, c.checkpoint_id) not in (select n.* from needed n)
        or (c.thread_id, c.checkpoint_ns, c.checkpoint_id, h.channel) in (select k.* from chained k)
    )
), values_gone as (
    delete from checkpoint_values v using touched t
    where v.thread_id = t.thread_id and v.checkpoint_ns = t.checkpoint_ns and not exists (
        select from used h
        where (h.thread_id, h.checkpoint_ns, h.channel, h.version)
            = (v.thread_id, v.checkpoint_ns, v.channel, v.version)
    )
    returning v.thread_id, v.checkpoint_ns, v.channel, v.version, v.pieces
), losing_pieces as (
    select g.thread_id from values_gone g where g.pieces is not null
    union
    select g.thread_id from writes_gone g where g.pieces is not null
), kept as (
    select v.thread_id, v.pieces, v.shared from checkpoint_values v
    where (v.pieces is not null or v.shared is not null) and v.thread_id in (select l.thread_id from losing_pieces l)
        and (v.thread_id, v.checkpoint_ns, v.channel, v.version)
            not in (select g.thread_id, g.checkpoint_ns, g.channel, g.version from values_gone g)
    union all
    select w.thread_id, w.pieces, w.shared from checkpoint_writes w
    where (w.pieces is not null or w.shared is not null)
        and w.thread_id in (select l.thread_id from losing_pieces l)
        and (w.thread_id, w.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx)
            not in (select g.thread_id, g.checkpoint_ns, g.checkpoint_id, g.task_id, g.idx from writes_gone g)
), pieces_used as materialized (
    select k.thread_id, p.series, range_agg(int8range(p.first, p.next)) as numbers
    from kept k cross join used_pieces(k.pieces, k.shared) p
    group by k.thread_id, p.series
)
delete from checkpoint_pieces p
where p.thread_id in (select l.thread_id from losing_pieces l) and not exists (
    select from pieces_used u
    where u.thread_id = p.thread_id and u.series = p.series and u.numbers @> p.number::bigint
)

-- name: copy_checkpoints
-- The whole history in one statement: a checkpoint without its values, pieces or writes could not be read.
with values_copied as (
    insert into checkpoint_values (thread_id, checkpoint_ns, channel, version, kind, data, pieces, shared)
    select :target::text, checkpoint_ns, channel, version, kind, data, pieces, shared
    from checkpoint_values where thread_id = :source
), pieces_copied as (
    insert into checkpoint_pieces (thread_id, series, number, leaves, data)
    select :target::text, series, number, leaves, data from checkpoint_pieces where thread_id = :source
), writes_copied as (
    insert into checkpoint_writes (
        thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, channel, kind, data, pieces, shared
    )
    select :target::text, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, channel, kind, data, pieces, shared
    from checkpoint_writes where thread_id = :source
)
insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_id, metadata, kind, body, channels, versions)
select :target::text, checkpoint_ns, checkpoint_id, parent_id, metadata, kind, body, channels, versions
from checkpoints where thread_id = :source

-- name: keep_latest_checkpoints
-- Keeps the latest checkpoint of each namespace. Where it counts steps since a snapshot, some channel is stored as a chain
-- of writes, so its ancestors are kept as well, back to one without such counts.
with recursive kept as (
    (
        select distinct on (thread_id, checkpoint_ns)
            thread_id, checkpoint_ns, checkpoint_id, parent_id, metadata ? 'counters_since_delta_snapshot' as is_partial
        from checkpoints where thread_id = any(:thread_ids::text[])
        order by thread_id, checkpoint_ns, checkpoint_id desc
    )
    union
    select p.thread_id, p.checkpoint_ns, p.checkpoint_id, p.parent_id, p.metadata ? 'counters_since_delta_snapshot'
    from kept k
    join checkpoints p
        on p.thread_id = k.thread_id and p.checkpoint_ns = k.checkpoint_ns and p.checkpoint_id = k.parent_id
    where k.is_partial
), writes_gone as (
    delete from checkpoint_writes w
    where w.thread_id = any(:thread_ids::text[]) and not exists (
        select from kept k
        where (k.thread_id, k.checkpoint_ns, k.checkpoint_id) = (w.thread_id, w.checkpoint_ns, w.checkpoint_id)
    )
), used as (
    select c.thread_id, c.checkpoint_ns, h.channel, h.version
    from kept k
    join checkpoints c using (thread_id, checkpoint_ns, checkpoint_id)
    cross join unnest(c.channels, c.versions) as h (channel, version)
), values_gone as (
    delete from checkpoint_values v
    where v.thread_id = any(:thread_ids::text[]) and not exists (
        select from used h
        where (h.thread_id, h.checkpoint_ns, h.channel, h.version) = (v.thread_id, v.checkpoint_ns, v.channel, v.version)
    )
), using_pieces as (
    select v.thread_id, v.pieces, v.shared
    from used h join checkpoint_values v using (thread_id, checkpoint_ns, channel, version)
    union all
    select w.thread_id, w.pieces, w.shared
    from kept k join checkpoint_writes w using (thread_id, checkpoint_ns, checkpoint_id)
), pieces_used as materialized (
    select v.thread_id, p.series, range_agg(int8range(p.first, p.next)) as numbers
    from using_pieces v cross join used_pieces(v.pieces, v.shared) p
    group by v.thread_id, p.series
), pieces_gone as (
    delete from checkpoint_pieces p
    where p.thread_id = any(:thread_ids::text[]) and not exists (
        select from pieces_used u
        where u.thread_id = p.thread_id and u.series = p.series and u.numbers @> p.number::bigint
    )
)
delete from checkpoints c
where c.thread_id = any(:thread_ids::text[]) and not exists (
    select from kept k
    where (k.thread_id, k.checkpoint_ns, k.checkpoint_id) = (c.thread_id, c.checkpoint_ns, c.checkpoint_id)
)

-- name: patch_checkpoint
-- encrypted: metadata as checkpoint.metadata
-- row: thread_id = thread_id, checkpoint_ns = checkpoint_ns
-- Without an id, `between '' and '~'` covers every id, and the greatest is the latest checkpoint.
update checkpoints set metadata = metadata || :metadata::text::jsonb
where (thread_id, checkpoint_ns, checkpoint_id) = (
    select thread_id, checkpoint_ns, checkpoint_id from checkpoints
    where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns
        and checkpoint_id between coalesce(:checkpoint_id::text, '') and coalesce(:checkpoint_id::text, '~')
    order by checkpoint_id desc limit 1
)
returning thread_id, checkpoint_ns, checkpoint_id
