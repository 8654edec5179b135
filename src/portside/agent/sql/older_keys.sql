-- Rows with ciphertext of an older AES key, page by page. Ciphertext begins with its version and the key's id: in a document
-- these are the first characters of base64, in a blob they follow a short head. Rows that only look like this are found
-- as well, and stay unchanged.

-- name: threads_of_older_keys
-- plain: patterns (the first characters of base64)
select thread_id, metadata, config, "values", interrupts, error from threads t
where thread_id > :after and t::text like any(:patterns::text[]) order by thread_id limit :limit

-- name: runs_of_older_keys
-- plain: patterns (the first characters of base64)
select run_id, thread_id, metadata, kwargs, error from runs r
where run_id > :after and r::text like any(:patterns::text[]) order by run_id limit :limit

-- name: assistants_of_older_keys
-- plain: patterns (the first characters of base64)
select assistant_id, metadata, config, context from assistants a
where assistant_id > :after and a::text like any(:patterns::text[]) order by assistant_id limit :limit

-- name: assistant_versions_of_older_keys
-- plain: patterns (the first characters of base64)
select assistant_id, version, metadata, config, context from assistant_versions v
where (assistant_id, version) > (:after, :after_version::int) and v::text like any(:patterns::text[])
order by assistant_id, version limit :limit

-- name: crons_of_older_keys
-- plain: patterns (the first characters of base64)
select cron_id, metadata, payload, owner from crons c
where cron_id > :after and c::text like any(:patterns::text[]) order by cron_id limit :limit

-- name: items_of_older_keys
-- plain: patterns (the first characters of base64)
select namespace, key, value from store_items
where (namespace, key) > (:after_namespace::text[], :after_key::text) and value::text like any(:patterns::text[])
order by namespace, key limit :limit

-- name: checkpoints_of_older_keys
-- plain: patterns (the first characters of base64)
-- plain: starts (the first bytes of ciphertext)
select thread_id, checkpoint_ns, checkpoint_id, metadata, body from checkpoints
where (thread_id, checkpoint_ns, checkpoint_id) > (:after, :after_ns::text, :after_id::text)
    and (metadata::text like any(:patterns::text[]) or holds_any(body, :starts))
order by thread_id, checkpoint_ns, checkpoint_id limit :limit

-- name: values_of_older_keys
-- plain: starts (the first bytes of ciphertext)
select thread_id, checkpoint_ns, channel, version, data from checkpoint_values
where (thread_id, checkpoint_ns, channel, version) > (:after, :after_ns::text, :after_channel::text, :after_version::text)
    and holds_any(data, :starts)
order by thread_id, checkpoint_ns, channel, version limit :limit

-- name: pieces_of_older_keys
-- plain: starts (the first bytes of ciphertext)
select thread_id, series, number, data from checkpoint_pieces
where (thread_id, series, number) > (:after, :after_series::bigint, :after_number::int) and holds_any(data, :starts)
order by thread_id, series, number limit :limit

-- name: writes_of_older_keys
-- plain: starts (the first bytes of ciphertext)
-- Page by page in the order of the primary key, because a table may be larger than memory.
select thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, data from checkpoint_writes
where (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
        > (:after, :after_ns::text, :after_id::text, :after_task::text, :after_idx::int)
    and holds_any(data, :starts)
order by thread_id, checkpoint_ns, checkpoint_id, task_id, idx limit :limit

-- name: webhooks_of_older_keys
-- plain: patterns (the first characters of base64)
-- The payload of a delivery that is over was deleted.
select run_id, thread_id, "values", run -> 'metadata' as metadata, run -> 'kwargs' as kwargs, run -> 'error' as error
from webhook_deliveries w
where run_id > :after and status = 'pending' and w::text like any(:patterns::text[]) order by run_id limit :limit

-- name: chunks_of_older_keys
-- plain: starts (the first bytes of ciphertext)
select thread_id, number, body from stream_chunks
where (thread_id, number) > (:after::uuid, :after_number::bigint) and holds_any(body, :starts)
order by thread_id, number limit :limit
