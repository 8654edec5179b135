-- A checkpoint with its values and pending writes in one row, both for reading one and for reading a list.
create or replace view checkpoint_tuples as
select
    c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_id, c.metadata, c.kind, c.body,
    v.channels as value_channels, v.kinds as value_kinds, v.datas as value_datas,
    w.task_ids as write_tasks, w.channels as write_channels, w.kinds as write_kinds, w.datas as write_datas
from checkpoints c
left join lateral (
    select array_agg(s.channel) as channels, array_agg(s.kind) as kinds, array_agg(s.data) as datas
    from unnest(c.channels, c.versions) as entry (channel, version)
    join checkpoint_values s
        on s.thread_id = c.thread_id and s.checkpoint_ns = c.checkpoint_ns
        and s.channel = entry.channel and s.version = entry.version
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
