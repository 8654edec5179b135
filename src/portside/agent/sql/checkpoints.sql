-- name: read_checkpoint
-- The hot path: every run starts with it. Both forms, "this one" and "the latest", are one range of the primary key.
select * from checkpoint_tuples
where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns
    and checkpoint_id between coalesce(:checkpoint_id::text, '') and coalesce(:checkpoint_id::text, '~')
order by checkpoint_id desc limit 1

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

-- name: put_checkpoint
-- A checkpoint and the values it changed in one statement. A version is never reused with another value, so a value that
-- is there already is the same one.
with stored as (
    insert into checkpoint_values (thread_id, checkpoint_ns, channel, version, kind, data)
    select :thread_id::text, :checkpoint_ns::text, channel, version, kind, data
    from unnest(:new_channels::text[], :new_versions::text[], :new_kinds::text[], :new_datas::bytea[])
        as changed (channel, version, kind, data)
    on conflict do nothing
)
insert into checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_id, metadata, kind, body, channels, versions
) values (
    :thread_id::text, :checkpoint_ns::text, :checkpoint_id, :parent_id, :metadata::text::jsonb, :kind, :body,
    :channels, :versions
)
on conflict (thread_id, checkpoint_ns, checkpoint_id) do update set
    parent_id = excluded.parent_id, metadata = excluded.metadata, kind = excluded.kind, body = excluded.body,
    channels = excluded.channels, versions = excluded.versions

-- name: put_writes
-- A task's writes in one statement. Ordinary writes are kept as they were first made; a special one (negative place) is
-- replaced, since a task may fail or be interrupted again.
insert into checkpoint_writes (
    thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, channel, kind, data
)
select :thread_id, :checkpoint_ns, :checkpoint_id, :task_id, idx, :task_path, :run_id, channel, kind, data
from unnest(:idxs::int[], :channels::text[], :kinds::text[], :datas::bytea[]) as made (idx, channel, kind, data)
on conflict (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) do update set
    channel = excluded.channel, kind = excluded.kind, data = excluded.data,
    task_path = excluded.task_path, run_id = excluded.run_id
where excluded.idx < 0

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
