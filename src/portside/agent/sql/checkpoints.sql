-- name: read_checkpoint
-- The hot path: every run starts with it. Both forms, "this one" and "the latest", are one range of the primary key.
select * from checkpoint_tuples
where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns
    and checkpoint_id between coalesce(:checkpoint_id::text, '') and coalesce(:checkpoint_id::text, '~')
order by checkpoint_id desc limit 1

-- name: read_states
-- Checkpoints that are asked for in the same moment, each with the graph of its thread and a stamp, and without the rest
-- where the stamp is one that the asker knows. It names versions of rows, by the transaction that made each and the place
-- where that put it: whoever changes one of them, whatever for, changes the stamp. There is none where the state depends
-- on what is in other checkpoints, as with channels that are stored as a chain of writes.
-- The limits keep Postgres from reading first and asking for the stamp afterwards.
select asked.place::int, thread.graph_id, latest.stamp, kept.*
from unnest(:thread_ids::uuid[], :namespaces::text[], :checkpoint_ids::text[], :known::text[])
    with ordinality as asked (thread_id, checkpoint_ns, checkpoint_id, known, place)
join lateral (
    select t.metadata ->> 'graph_id' as graph_id from threads t
    where t.thread_id = asked.thread_id and t.delete_after is null limit 1
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
        ) end as stamp
    from checkpoints c
    where c.thread_id = asked.thread_id::text and c.checkpoint_ns = asked.checkpoint_ns
        and c.checkpoint_id between coalesce(asked.checkpoint_id, '') and coalesce(asked.checkpoint_id, '~')
    order by c.checkpoint_id desc limit 1
) latest on true
left join lateral (
    select v.* from checkpoint_tuples v
    where v.thread_id = latest.thread_id and v.checkpoint_ns = latest.checkpoint_ns
        and v.checkpoint_id = latest.checkpoint_id
        and (asked.known is null or latest.stamp is distinct from asked.known)
    limit 1
) kept on true

-- name: list_checkpoints
-- One page, newest first; the last row of a page is where the next one starts.
select * from checkpoint_tuples
where (:thread_id::text is null or thread_id = :thread_id)
    and (:checkpoint_ns::text is null or checkpoint_ns = :checkpoint_ns)
    and (:checkpoint_id::text is null or checkpoint_id = :checkpoint_id)
    and (:before::text is null or checkpoint_id < :before)
    and (:filter::text is null or metadata @> :filter::text::jsonb)
    and (:after_id::text is null or (checkpoint_id, thread_id, checkpoint_ns) < (:after_id, :after_thread::text, :after_ns::text))
order by checkpoint_id desc, thread_id desc, checkpoint_ns desc limit :count::int

-- name: write_checkpoints
-- The checkpoints, values and writes of many threads in one statement, for each thread whose run is still the one that
-- made them (or that no run made). The locks keep runs from being given to another worker in between; they are taken in
-- the order that all take them in.
-- A version is never reused with another value, so a value that is there already is the same one. Ordinary writes are
-- kept as they were first made; a special one (negative place) is replaced, since a task may be interrupted again.
with made as (
    select thread_id, run_id, attempt
    from unnest(:threads::text[], :runs::uuid[], :attempts::int[]) as m (thread_id, run_id, attempt)
), owned as (
    select made.thread_id from runs r join made on r.run_id = made.run_id and r.attempt = made.attempt
    where r.status = 'running' order by r.thread_id for share of r
), held as materialized (
    select thread_id from owned union all select thread_id from made where run_id is null
), new_values as (
    insert into checkpoint_values (thread_id, checkpoint_ns, channel, version, kind, data)
    select v.* from unnest(
        :v_thread::text[], :v_ns::text[], :v_channel::text[], :v_version::text[], :v_kind::text[], :v_data::bytea[]
    ) as v (thread_id, checkpoint_ns, channel, version, kind, data)
    where v.thread_id in (select thread_id from held)
    on conflict do nothing
), new_writes as (
    insert into checkpoint_writes (
        thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, channel, kind, data
    )
    select w.* from unnest(
        :w_thread::text[], :w_ns::text[], :w_checkpoint::text[], :w_task::text[], :w_idx::int[], :w_path::text[],
        :w_run::text[], :w_channel::text[], :w_kind::text[], :w_data::bytea[]
    ) as w (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, channel, kind, data)
    where w.thread_id in (select thread_id from held)
    on conflict (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) do update set
        channel = excluded.channel, kind = excluded.kind, data = excluded.data,
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
    where c.thread_id in (select thread_id from held)
    on conflict (thread_id, checkpoint_ns, checkpoint_id) do update set
        parent_id = excluded.parent_id, metadata = excluded.metadata, kind = excluded.kind, body = excluded.body,
        channels = excluded.channels, versions = excluded.versions
)
select thread_id from held

-- name: delete_checkpoints_of_threads
with values_gone as (
    delete from checkpoint_values where thread_id = any(:thread_ids::text[])
), writes_gone as (
    delete from checkpoint_writes where thread_id = any(:thread_ids::text[])
)
delete from checkpoints where thread_id = any(:thread_ids::text[])

-- name: delete_checkpoints_of_runs
-- A run leaves checkpoints of its own and writes on the checkpoint it started from; both go, and the values that no
-- other checkpoint holds. With a thread given, copies of it keep theirs: they carry the same run ids.
with gone as (
    delete from checkpoints
    where metadata ->> 'run_id' = any(:run_ids::text[]) and (:thread_id::text is null or thread_id = :thread_id)
    returning thread_id, checkpoint_ns, checkpoint_id
), writes_gone as (
    delete from checkpoint_writes w
    where (w.run_id = any(:run_ids::text[]) and (:thread_id::text is null or w.thread_id = :thread_id))
        or (w.thread_id, w.checkpoint_ns, w.checkpoint_id) in (select g.thread_id, g.checkpoint_ns, g.checkpoint_id from gone g)
), touched as (
    select distinct thread_id, checkpoint_ns from gone
), held as (
    select c.thread_id, c.checkpoint_ns, h.channel, h.version
    from touched t
    join checkpoints c using (thread_id, checkpoint_ns)
    cross join unnest(c.channels, c.versions) as h (channel, version)
    where not exists (
        select from gone g
        where (g.thread_id, g.checkpoint_ns, g.checkpoint_id) = (c.thread_id, c.checkpoint_ns, c.checkpoint_id)
    )
)
delete from checkpoint_values v using touched t
where v.thread_id = t.thread_id and v.checkpoint_ns = t.checkpoint_ns and not exists (
    select from held h
    where (h.thread_id, h.checkpoint_ns, h.channel, h.version) = (v.thread_id, v.checkpoint_ns, v.channel, v.version)
)

-- name: copy_checkpoints
with values_copied as (
    insert into checkpoint_values (thread_id, checkpoint_ns, channel, version, kind, data)
    select :target::text, checkpoint_ns, channel, version, kind, data
    from checkpoint_values where thread_id = :source
), writes_copied as (
    insert into checkpoint_writes (
        thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, channel, kind, data
    )
    select :target::text, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, channel, kind, data
    from checkpoint_writes where thread_id = :source
)
insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_id, metadata, kind, body, channels, versions)
select :target::text, checkpoint_ns, checkpoint_id, parent_id, metadata, kind, body, channels, versions
from checkpoints where thread_id = :source

-- name: keep_latest_checkpoints
-- The latest checkpoint of each namespace stays. Where it counts steps since a snapshot, some channel is stored as a
-- chain of writes, so its ancestors stay as well, back to one without such counts.
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
), held as (
    select c.thread_id, c.checkpoint_ns, h.channel, h.version
    from kept k
    join checkpoints c using (thread_id, checkpoint_ns, checkpoint_id)
    cross join unnest(c.channels, c.versions) as h (channel, version)
), values_gone as (
    delete from checkpoint_values v
    where v.thread_id = any(:thread_ids::text[]) and not exists (
        select from held h
        where (h.thread_id, h.checkpoint_ns, h.channel, h.version) = (v.thread_id, v.checkpoint_ns, v.channel, v.version)
    )
)
delete from checkpoints c
where c.thread_id = any(:thread_ids::text[]) and not exists (
    select from kept k
    where (k.thread_id, k.checkpoint_ns, k.checkpoint_id) = (c.thread_id, c.checkpoint_ns, c.checkpoint_id)
)

-- name: patch_checkpoint
update checkpoints set metadata = metadata || :metadata::text::jsonb
where (thread_id, checkpoint_ns, checkpoint_id) = (
    select thread_id, checkpoint_ns, checkpoint_id from checkpoints
    where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns
        and checkpoint_id between coalesce(:checkpoint_id::text, '') and coalesce(:checkpoint_id::text, '~')
    order by checkpoint_id desc limit 1
)
returning thread_id, checkpoint_ns, checkpoint_id
