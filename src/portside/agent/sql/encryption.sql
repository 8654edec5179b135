-- A handler that decrypts may want what it read stored in another form, under a newer key. It is put there only where
-- what was read still stands. `path` leads to it in the document; the empty one is the document itself.

-- name: replace_in_threads
update threads set
    metadata = case when :field = 'metadata' then put_at(metadata, :path::text[], :new::jsonb) else metadata end,
    config = case when :field = 'config' then put_at(config, :path, :new) else config end,
    "values" = case when :field = 'values' then put_at("values", :path, :new) else "values" end,
    interrupts = case when :field = 'interrupts' then put_at(interrupts, :path, :new) else interrupts end,
    error = case when :field = 'error' then put_at(error, :path, :new) else error end
where thread_id = :thread_id and :old::jsonb = case :field
    when 'metadata' then metadata when 'config' then config when 'values' then "values"
    when 'interrupts' then interrupts when 'error' then error
end #> :path

-- name: replace_in_runs
update runs set
    metadata = case when :field = 'metadata' then put_at(metadata, :path::text[], :new::jsonb) else metadata end,
    kwargs = case when :field = 'kwargs' then put_at(kwargs, :path, :new) else kwargs end,
    error = case when :field = 'error' then put_at(error, :path, :new) else error end
where run_id = :run_id and :old::jsonb = case :field
    when 'metadata' then metadata when 'kwargs' then kwargs when 'error' then error
end #> :path

-- name: replace_in_assistants
-- The version that an assistant is of holds the same, and is not changed: it is replaced when it is read itself.
update assistants set
    metadata = case when :field = 'metadata' then put_at(metadata, :path::text[], :new::jsonb) else metadata end,
    config = case when :field = 'config' then put_at(config, :path, :new) else config end,
    context = case when :field = 'context' then put_at(context, :path, :new) else context end
where assistant_id = :assistant_id and :old::jsonb = case :field
    when 'metadata' then metadata when 'config' then config when 'context' then context
end #> :path

-- name: replace_in_assistant_versions
update assistant_versions set
    metadata = case when :field = 'metadata' then put_at(metadata, :path::text[], :new::jsonb) else metadata end,
    config = case when :field = 'config' then put_at(config, :path, :new) else config end,
    context = case when :field = 'context' then put_at(context, :path, :new) else context end
where assistant_id = :assistant_id and version = :version and :old::jsonb = case :field
    when 'metadata' then metadata when 'config' then config when 'context' then context
end #> :path

-- name: replace_in_crons
update crons set
    metadata = case when :field = 'metadata' then put_at(metadata, :path::text[], :new::jsonb) else metadata end,
    payload = case when :field = 'payload' then put_at(payload, :path, :new) else payload end
where cron_id = :cron_id and :old::jsonb = case :field
    when 'metadata' then metadata when 'payload' then payload
end #> :path

-- name: replace_in_items
update store_items set value = put_at(value, :path::text[], :new::jsonb)
where namespace = :namespace and key = :key and :field = 'value' and value #> :path = :old::jsonb

-- name: replace_in_checkpoints
update checkpoints set metadata = put_at(metadata, :path::text[], :new::jsonb)
where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns and checkpoint_id = :checkpoint_id
    and :field = 'metadata' and metadata #> :path = :old::jsonb

-- name: replace_checkpoint_body
update checkpoints set body = :new
where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns and checkpoint_id = :checkpoint_id and body = :old

-- name: replace_checkpoint_value
update checkpoint_values set data = :new
where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns and channel = :channel and data = :old

-- name: replace_checkpoint_write
update checkpoint_writes set data = :new
where thread_id = :thread_id and checkpoint_ns = :checkpoint_ns and checkpoint_id = :checkpoint_id
    and task_id = :task_id and channel = :channel and data = :old
