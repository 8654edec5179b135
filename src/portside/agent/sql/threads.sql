-- name: insert_thread
-- encrypted: metadata as thread.metadata
-- A thread without a lifetime gets the server's default.
insert into threads (thread_id, metadata, ttl_minutes, ttl_strategy)
values (
    :thread_id, :metadata,
    coalesce(:ttl_minutes::double precision, default_ttl_minutes()), coalesce(:ttl_strategy::text, default_ttl_strategy())
)
on conflict (thread_id) do nothing
returning thread_id, created_at, updated_at, state_updated_at, metadata::text, config::text, status,
          "values"::text as "values", null as long_values, interrupts::text, error::text

-- name: restore_thread_times
-- A thread with a lifetime keeps the time of its import as that of its last change, or it might expire at once.
update threads set
    created_at = coalesce(:created_at::timestamptz, created_at),
    updated_at = case when ttl_minutes is null then coalesce(:updated_at::timestamptz, updated_at) else updated_at end,
    state_updated_at = coalesce(:updated_at::timestamptz, state_updated_at)
where thread_id = :thread_id

-- name: get_thread
-- replaceable: threads
-- A thread with `delete_after` belonged to a stateless run: clients may still join that run, but the thread is gone.
select thread_id, created_at, updated_at, state_updated_at, metadata::text, config::text, status,
       "values"::text as "values", long_values::text, interrupts::text, error::text,
       ttl_minutes, ttl_strategy, thread_expiry(updated_at, ttl_minutes) as expires_at
from threads where thread_id = :thread_id and delete_after is null

-- name: search_threads
-- searched: metadata as thread.metadata, values as thread.values
-- paths: extract
-- plain: fields (names of columns)
-- replaceable: threads
-- undecryptable: mark
-- `find_threads` picks the rows of the page; only these are read, and of them only the selected fields. Paths are
-- extracted here, so that values need not be sent for it. There is always a row, for the total; on an empty page it has
-- no thread.
select
    found.total, t.thread_id, t.created_at, t.updated_at, t.state_updated_at, t.status,
    case when 'metadata' = any (:fields::text[]) then t.metadata::text end as metadata,
    case when 'config' = any (:fields::text[]) then t.config::text end as config,
    case when 'values' = any (:fields::text[]) or t.long_values is not null then t."values"::text end as "values",
    t.long_values::text as long_values,
    case when 'interrupts' = any (:fields::text[]) then t.interrupts::text end as interrupts,
    case when 'error' = any (:fields::text[]) then t.error::text end as error,
    (
        select jsonb_object_agg(
            e ->> 'alias',
            case e ->> 'root'
                when 'values' then t."values" when 'metadata' then t.metadata
                when 'config' then t.config else t.interrupts
            end #> array(select jsonb_array_elements_text(e -> 'path'))
        )::text
        from jsonb_array_elements(:extract::jsonb) e
    ) as extracted
from find_threads(
    :ids::uuid[], :metadata::jsonb, :values::jsonb, :status::text, :sort::text, :limit::int, :offset::int,
    :access::jsonb, :matched_ids::uuid[]
) found
left join lateral unnest(found.thread_ids) with ordinality as page (thread_id, place) on true
left join lateral (select * from threads one where one.thread_id = page.thread_id limit 1) t on true
order by page.place

-- name: count_threads
-- searched: metadata as thread.metadata, values as thread.values
select total
from find_threads(
    null, :metadata::jsonb, :values::jsonb, :status::text, 'updated_at desc', 0, 0, :access::jsonb, :matched_ids::uuid[]
)

-- name: find_threads_with_long_values
-- searched: metadata as thread.metadata, values as thread.values
-- The threads that may match a search, although their rows lack the value of one of these keys: it is a long list, stored
-- in checkpoints. All other filters are applied here, also those by values that the rows have.
select thread_id from threads
where long_values ?| :keys::text[] and not is_temporary
    and (:ids::uuid[] is null or thread_id = any (:ids::uuid[]))
    and (:status::text is null or status = :status::text)
    and (:metadata::jsonb is null or metadata @> :metadata::jsonb)
    and (:access::jsonb is null or matches_access(metadata, :access::jsonb))
    and coalesce("values", '{}') @> (:values::jsonb - array(select jsonb_object_keys(long_values)))
order by thread_id limit :limit

-- name: read_threads_with_long_values
select thread_id, "values"::text as "values", long_values::text from threads where thread_id = any (:thread_ids::uuid[])

-- name: read_long_value
-- Returns the columns of `checkpoint_tuples`, which the codec needs to decrypt a value.
select
    v.thread_id, v.checkpoint_ns, array[v.channel] as value_channels, v.kind,
    array[v.data || coalesce(joined.data, '')] as value_datas, array[v.pieces::text] as value_pieces,
    array[joined.sizes] as value_sizes
from checkpoint_values v
left join lateral joined_pieces(v.thread_id, v.pieces) joined on v.pieces is not null
where v.thread_id = :thread_id and v.checkpoint_ns = '' and v.channel = :channel and v.version = :version

-- name: join_long_values
-- plain: rows, lists, extracteds, matching, extract (only read, never stored)
-- Joins the values of rows with their long lists in Postgres, because the text of `jsonb` has its own order of keys and
-- its own spaces. Also extracts the paths of a search, and compares the values with a filter. The arrays are selected as
-- in `read_states`: the statement is planned once.
select
    whole."values"::text as joined, whole."values" @> coalesce(:matching::text::jsonb, '{}') as is_matching,
    (
        r.extracted::jsonb || coalesce((
            select jsonb_object_agg(
                e ->> 'alias', whole."values" #> array(select jsonb_array_elements_text(e -> 'path'))
            )
            from jsonb_array_elements(:extract::text::jsonb) e where e ->> 'root' = 'values'
        ), '{}')
    )::text as joined_paths
from unnest((select :rows::text[]), (select :lists::text[]), (select :extracteds::text[]))
    with ordinality as r (base, lists, extracted, place)
cross join lateral (select r.base::jsonb || r.lists::jsonb as "values" offset 0) whole
order by r.place

-- name: patch_thread
-- encrypted: metadata as thread.metadata
-- replaceable: threads
-- The values are only read if the caller wants the thread back.
update threads set
    metadata = metadata || coalesce(:metadata::jsonb, '{}'),
    ttl_minutes = coalesce(:ttl_minutes::double precision, ttl_minutes),
    ttl_strategy = coalesce(:ttl_strategy::text, ttl_strategy),
    updated_at = now()
where thread_id = :thread_id and delete_after is null
returning thread_id, created_at, updated_at, state_updated_at, metadata::text, config::text, status,
          case when :is_returned then "values"::text end as "values",
          case when :is_returned then long_values::text end as long_values, interrupts::text, error::text

-- name: delete_thread
-- Runs are deleted with the thread, and a trigger deletes its checkpoints. `write_checkpoints` locks the row of its run,
-- so what an active run writes is either there before the trigger runs, or is not written.
delete from threads where thread_id = :thread_id returning active_runs > 0 as has_runs

-- name: copy_thread
-- encrypted: metadata as thread.metadata, config as thread.config, values as thread.values
-- row: thread_id = target
-- The checkpoints are copied in the same transaction. Encrypted documents are passed in, bound to the copy.
insert into threads (thread_id, metadata, config, "values", long_values, ttl_minutes, ttl_strategy)
select :target, coalesce(:metadata::jsonb, metadata), coalesce(:config::jsonb, config),
    coalesce(:values::text::jsonb, "values"), long_values, ttl_minutes, ttl_strategy
from threads where thread_id = :source and delete_after is null
returning thread_id, created_at, updated_at, state_updated_at, metadata::text, config::text, status,
          "values"::text as "values", long_values::text, interrupts::text, error::text

-- name: prune_threads
-- Threads with an active run are skipped. Rows are locked in the order of their ids, so that two calls cannot deadlock.
delete from threads where thread_id in (
    select thread_id from threads where thread_id = any (:thread_ids::uuid[]) and active_runs = 0
    order by thread_id for update
)
returning thread_id

-- name: lock_idle_threads
-- While threads are locked, no run is admitted to them.
select thread_id::text as thread_id from threads where thread_id = any (:thread_ids::uuid[]) and active_runs = 0
order by thread_id for update

-- name: thread_storage
-- Bytes as stored, after compression.
select
    (select count(*) from checkpoints c where c.thread_id = t.thread_id::text) as checkpoints,
    (
        select coalesce(sum(pg_column_size(c.*)), 0)::bigint from checkpoints c where c.thread_id = t.thread_id::text
    ) as checkpoint_bytes,
    (
        select jsonb_object_agg(v.channel, jsonb_build_object('versions', v.versions, 'bytes', v.bytes))
        from (
            select channel, sum(versions)::bigint as versions, sum(bytes)::bigint as bytes
            from (
                select channel, count(*) as versions, sum(pg_column_size(data)) as bytes
                from checkpoint_values where thread_id = t.thread_id::text group by channel
                union all
                select s.channel, 0, sum(pg_column_size(p.data))
                from (
                    select distinct o.channel, r.series from checkpoint_values o cross join piece_ranges(o.pieces) r
                    where o.thread_id = t.thread_id::text
                ) s join checkpoint_pieces p on p.thread_id = t.thread_id::text and p.series = s.series
                group by s.channel
            ) of_channels
            group by channel
        ) v
    ) as channels,
    (select count(*) from checkpoint_writes w where w.thread_id = t.thread_id::text) as writes,
    (
        select coalesce(sum(pg_column_size(w.data)), 0)::bigint
        from checkpoint_writes w where w.thread_id = t.thread_id::text
    ) as write_bytes
from threads t where t.thread_id = :thread_id and t.delete_after is null

-- name: graph_of_thread
-- Not of a thread with `delete_after`, which belonged to a stateless run and counts as gone.
select metadata ->> 'graph_id' as graph_id from threads where thread_id = :thread_id and delete_after is null

-- name: assistant_of_thread
-- Clients can write the metadata, so its id may be any text, and is not cast to a uuid.
select a.assistant_id, a.config, a.context
from threads t join assistants a on a.assistant_id::text = t.metadata ->> 'assistant_id'
where t.thread_id = :thread_id

-- name: pending_interrupts
-- While a run is active, the interrupts of the row are those of the run before, hence the condition on the status.
select interrupts::text from threads
where thread_id = :thread_id and status = 'interrupted' and delete_after is null

-- name: lock_thread
-- Until the transaction ends no run is admitted to the thread.
select active_runs from threads where thread_id = :thread_id for update

-- name: write_thread_state
-- encrypted: interrupts as thread.interrupts, values as thread.values
-- plain: long_values (names of channels and versions)
-- Part of a client's change of the state, under the lock of `lock_thread`.
update threads set
    "values" = :values::text::jsonb, long_values = :long_values::jsonb, status = :status, interrupts = :interrupts, error = null,
    updated_at = now(), state_updated_at = now()
where thread_id = :thread_id

-- name: set_default_lifetime
-- Every start of a server calls this, and most change nothing.
update thread_lifetime set ttl_minutes = :ttl_minutes, strategy = :strategy
where (ttl_minutes, strategy) is distinct from (:ttl_minutes::double precision, :strategy::text)

-- name: delete_expired_threads
-- A thread with an active run does not expire.
delete from threads where thread_id in (
    select thread_id from threads
    where ttl_minutes is not null and pruned_for is distinct from updated_at
        and thread_expiry(updated_at, ttl_minutes) < now() and ttl_strategy = 'delete' and active_runs = 0
    order by thread_expiry(updated_at, ttl_minutes) limit :limit for update skip locked
)

-- name: lock_threads_to_prune
-- Threads that changed since they were last pruned. Their rows are locked, so that no run begins meanwhile.
select thread_id::text as thread_id from threads
where ttl_minutes is not null and pruned_for is distinct from updated_at
    and thread_expiry(updated_at, ttl_minutes) < now() and ttl_strategy = 'keep_latest' and active_runs = 0
order by thread_expiry(updated_at, ttl_minutes) limit :limit for update skip locked

-- name: note_pruned_threads
-- Pruned threads stay expired; they are due again when they change.
update threads set pruned_for = updated_at where thread_id = any (:thread_ids::text[]::uuid[])

-- name: delete_due_threads
-- The threads of stateless runs, once clients had time to join these.
delete from threads where thread_id in (
    select thread_id from threads where delete_after < now() and active_runs = 0
    order by delete_after limit :limit for update skip locked
)
