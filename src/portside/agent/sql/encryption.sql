-- A handler that decrypts may want the ciphertext replaced, for example under a newer key. It is replaced only if the old
-- ciphertext is still stored. `path` leads to it in the document; the empty path is the document itself.

-- name: replace_in_threads
-- plain: old, new (already encrypted by a handler)
-- Replaces one value, if nobody has changed it since it was read (`old`).
update threads set
    metadata = case when :field = 'metadata' then jsonb_replace(metadata, :path::text[], :new::jsonb) else metadata end,
    config = case when :field = 'config' then jsonb_replace(config, :path, :new) else config end,
    "values" = case when :field = 'values' then jsonb_replace("values", :path, :new) else "values" end,
    interrupts = case when :field = 'interrupts' then jsonb_replace(interrupts, :path, :new) else interrupts end,
    error = case when :field = 'error' then jsonb_replace(error, :path, :new) else error end
where thread_id = :thread_id and :old::jsonb = case :field
    when 'metadata' then metadata when 'config' then config when 'values' then "values"
    when 'interrupts' then interrupts when 'error' then error
end #> :path

-- name: replace_in_runs
-- plain: old, new (already encrypted by a handler)
-- Replaces one value, if nobody has changed it since it was read (`old`).
update runs set
    metadata = case when :field = 'metadata' then jsonb_replace(metadata, :path::text[], :new::jsonb) else metadata end,
    kwargs = case when :field = 'kwargs' then jsonb_replace(kwargs, :path, :new) else kwargs end,
    error = case when :field = 'error' then jsonb_replace(error, :path, :new) else error end
where run_id = :run_id and :old::jsonb = case :field
    when 'metadata' then metadata when 'kwargs' then kwargs when 'error' then error
end #> :path

-- name: replace_in_assistants
-- plain: old, new (already encrypted by a handler)
-- The same ciphertext in the assistant's version stays: it is replaced when the version is read.
update assistants set
    metadata = case when :field = 'metadata' then jsonb_replace(metadata, :path::text[], :new::jsonb) else metadata end,
    config = case when :field = 'config' then jsonb_replace(config, :path, :new) else config end,
    context = case when :field = 'context' then jsonb_replace(context, :path, :new) else context end
where assistant_id = :assistant_id and :old::jsonb = case :field
    when 'metadata' then metadata when 'config' then config when 'context' then context
end #> :path

-- name: replace_in_assistant_versions
-- plain: old, new (already encrypted by a handler)
update assistant_versions set
    metadata = case when :field = 'metadata' then jsonb_replace(metadata, :path::text[], :new::jsonb) else metadata end,
    config = case when :field = 'config' then jsonb_replace(config, :path, :new) else config end,
    context = case when :field = 'context' then jsonb_replace(context, :path, :new) else context end
where assistant_id = :assistant_id and version = :version and :old::jsonb = case :field
    when 'metadata' then metadata when 'config' then config when 'context' then context
end #> :path

-- name: replace_in_crons
-- plain: old, new (already encrypted by a handler)
update crons set
    metadata = case when :field = 'metadata' then jsonb_replace(metadata, :path::text[], :new::jsonb) else metadata end,
    payload = case when :field = 'payload' then jsonb_replace(payload, :path, :new) else payload end,
    owner = case when :field = 'owner' then jsonb_replace(owner, :path, :new) else owner end
where cron_id = :cron_id and :old::jsonb = case :field
    when 'metadata' then metadata when 'payload' then payload when 'owner' then owner
end #> :path

-- name: replace_in_items
-- plain: old, new (already encrypted by a handler)
update store_items set value = jsonb_replace(value, :path::text[], :new::jsonb)
where namespace = :namespace and key = :key and :field = 'value' and value #> :path = :old::jsonb

-- name: replace_in_webhook_deliveries
-- plain: old, new (already encrypted by a handler)
-- The documents of the run are in one column.
update webhook_deliveries set
    "values" = case when :field::text = 'values' then jsonb_replace("values", :path::text[], :new::jsonb) else "values" end,
    run = case when :field = 'values' then run else jsonb_replace(run, :field || :path, :new) end
where run_id = :run_id and :old::jsonb = case when :field = 'values' then "values" else run -> :field end #> :path

-- name: replace_in_checkpoints
-- plain: old, new (already encrypted by a handler)
update checkpoints set metadata = jsonb_replace(metadata, :path::text[], :new::jsonb)
where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns and checkpoint_id = :checkpoint_id
    and :field = 'metadata' and metadata #> :path = :old::jsonb

-- name: replace_checkpoint_body
-- plain: old, new (already encrypted by a handler)
update checkpoints set body = :new
where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns and checkpoint_id = :checkpoint_id and body = :old

-- name: replace_checkpoint_value
-- plain: old, new (already encrypted by a handler)
update checkpoint_values set data = :new
where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns and channel = :channel and data = :old

-- name: replace_checkpoint_piece
-- plain: old, new (already encrypted by a handler)
update checkpoint_pieces set data = :new
where thread_id = :thread_id and series = :series::bigint and number = :number::int and data = :old

-- name: replace_checkpoint_write
-- plain: old, new (already encrypted by a handler)
update checkpoint_writes set data = :new
where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns and checkpoint_id = :checkpoint_id
    and task_id = :task_id and channel = :channel and data = :old

-- name: replace_stream_chunk
-- plain: old, new (already encrypted by a handler)
update stream_chunks set body = :new where thread_id = :thread_id and number = :number::bigint and body = :old

-- name: may_hold_unbound
select may_contain_unbound from encryption

-- name: copied_checkpoints
-- Pages through the copied rows of a thread, which are then bound to it.
select checkpoint_ns, checkpoint_id, metadata, body from checkpoints
where thread_id = :thread_id and (checkpoint_ns, checkpoint_id) > (:after_ns::text, :after_id::text)
order by checkpoint_ns, checkpoint_id limit :limit

-- name: bind_checkpoints
-- plain: bodies, metadatas (encrypted for the copy of the thread)
update checkpoints c set metadata = g.metadata::jsonb, body = g.body
from unnest(:namespaces::text[], :checkpoint_ids::text[], :metadatas::text[], :bodies::bytea[])
    as g (checkpoint_ns, checkpoint_id, metadata, body)
where c.thread_id = :thread_id and c.checkpoint_ns = g.checkpoint_ns and c.checkpoint_id = g.checkpoint_id

-- name: copied_values
select checkpoint_ns, channel, version, data from checkpoint_values
where thread_id = :thread_id
    and (checkpoint_ns, channel, version) > (:after_ns::text, :after_channel::text, :after_version::text)
order by checkpoint_ns, channel, version limit :limit

-- name: bind_values
-- plain: datas (encrypted for the copy of the thread)
update checkpoint_values v set data = g.data
from unnest(:namespaces::text[], :channels::text[], :versions::text[], :datas::bytea[])
    as g (checkpoint_ns, channel, version, data)
where v.thread_id = :thread_id and v.checkpoint_ns = g.checkpoint_ns and v.channel = g.channel and v.version = g.version

-- name: copied_pieces
select series, number, data from checkpoint_pieces
where thread_id = :thread_id and (series, number) > (:after_series::bigint, :after_number::int)
order by series, number limit :limit

-- name: bind_pieces
-- plain: series, numbers (ids and numbers)
-- plain: datas (encrypted for the copy of the thread)
update checkpoint_pieces p set data = g.data
from unnest(:series::bigint[], :numbers::int[], :datas::bytea[]) as g (series, number, data)
where p.thread_id = :thread_id and p.series = g.series and p.number = g.number

-- name: copied_writes
select checkpoint_ns, checkpoint_id, task_id, idx, channel, data from checkpoint_writes
where thread_id = :thread_id and (checkpoint_ns, checkpoint_id, task_id, idx)
    > (:after_ns::text, :after_id::text, :after_task::text, :after_idx::int)
order by checkpoint_ns, checkpoint_id, task_id, idx limit :limit

-- name: bind_writes
-- plain: datas (encrypted for the copy of the thread)
-- All writes of a batch at once: ciphertext is bound to its thread, so a copy has ciphertext of its own.
update checkpoint_writes w set data = g.data
from unnest(:namespaces::text[], :checkpoint_ids::text[], :task_ids::text[], :places::int[], :datas::bytea[])
    as g (checkpoint_ns, checkpoint_id, task_id, idx, data)
where w.thread_id = :thread_id and w.checkpoint_ns = g.checkpoint_ns and w.checkpoint_id = g.checkpoint_id
    and w.task_id = g.task_id and w.idx = g.idx
