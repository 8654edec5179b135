-- What the graphs of this server remember. A checkpoint names the version of each channel it holds; values are kept once
-- per version, so a step rewrites only the channels it changed. Small plain values (numbers, short strings, null) are in
-- the checkpoint's body instead: a row less for each routing channel of each step.
--
-- No foreign keys: writes reach the database while the checkpoint they belong to is still on its way.
-- Keys are compared byte by byte ("C"): that is the order langgraph sorts checkpoints and writes in.

create table checkpoints (
    thread_id text collate "C" not null,
    checkpoint_ns text collate "C" not null,
    checkpoint_id text collate "C" not null,
    parent_id text collate "C",
    metadata jsonb not null,
    kind text not null,
    body bytea not null,
    channels text[] not null,
    versions text[] not null,
    primary key (thread_id, checkpoint_ns, checkpoint_id)
);
create index checkpoints_of_run on checkpoints ((metadata ->> 'run_id')) where metadata ->> 'run_id' is not null;

create table checkpoint_values (
    thread_id text collate "C" not null,
    checkpoint_ns text collate "C" not null,
    channel text collate "C" not null,
    version text collate "C" not null,
    kind text not null,
    data bytea not null,
    primary key (thread_id, checkpoint_ns, channel, version)
);

-- `idx` is the place of a write among its task's; the special ones (error, interrupt, resume, …) have negative places.
create table checkpoint_writes (
    thread_id text collate "C" not null,
    checkpoint_ns text collate "C" not null,
    checkpoint_id text collate "C" not null,
    task_id text collate "C" not null,
    idx int not null,
    task_path text collate "C" not null,
    run_id text,
    channel text not null,
    kind text not null,
    data bytea not null,
    primary key (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
);
create index checkpoint_writes_of_run on checkpoint_writes (run_id) where run_id is not null;

-- A checkpoint with its values and pending writes in one row, whether one is read or a list of them.
create view checkpoint_tuples as
select
    c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_id, c.metadata, c.kind, c.body,
    v.channels as value_channels, v.kinds as value_kinds, v.datas as value_datas,
    w.task_ids as write_tasks, w.channels as write_channels, w.kinds as write_kinds, w.datas as write_datas
from checkpoints c
left join lateral (
    select array_agg(s.channel) as channels, array_agg(s.kind) as kinds, array_agg(s.data) as datas
    from unnest(c.channels, c.versions) as held (channel, version)
    join checkpoint_values s
        on s.thread_id = c.thread_id and s.checkpoint_ns = c.checkpoint_ns
        and s.channel = held.channel and s.version = held.version
) v on true
left join lateral (
    select
        array_agg(p.task_id) as task_ids, array_agg(p.channel) as channels,
        array_agg(p.kind) as kinds, array_agg(p.data) as datas
    from (
        select o.task_id, o.channel, o.kind, o.data
        from checkpoint_writes o
        where o.thread_id = c.thread_id and o.checkpoint_ns = c.checkpoint_ns and o.checkpoint_id = c.checkpoint_id
        order by o.task_path, o.task_id, o.idx
    ) p
) w on true;
