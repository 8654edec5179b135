-- name: insert_thread
insert into threads (thread_id, metadata) values (:thread_id, :metadata)
on conflict (thread_id) do nothing
returning thread_id, created_at, updated_at, state_updated_at, metadata, config, status,
          "values"::text as "values", interrupts, error

-- name: get_thread
select thread_id, created_at, updated_at, state_updated_at, metadata, config, status,
       "values"::text as "values", interrupts, error
from threads where thread_id = :thread_id

-- name: search_threads
select thread_id, created_at, updated_at, state_updated_at, metadata, config, status,
       "values"::text as "values", interrupts, error
from threads
where (:status::text is null or status = :status)
  and (:metadata::jsonb is null or metadata @> :metadata)
order by updated_at desc, thread_id
limit :limit offset :offset

-- name: count_threads
select count(*) from threads
where (:status::text is null or status = :status) and (:metadata::jsonb is null or metadata @> :metadata)

-- name: patch_thread
update threads set metadata = metadata || :metadata, updated_at = now()
where thread_id = :thread_id
returning thread_id, created_at, updated_at, state_updated_at, metadata, config, status,
          "values"::text as "values", interrupts, error

-- name: delete_thread
delete from threads where thread_id = :thread_id returning thread_id

-- name: graph_of_thread
select metadata ->> 'graph_id' as graph_id, active_runs from threads where thread_id = :thread_id

-- name: write_thread_state
-- After a state update by a person: refused (no row) while a run is in flight.
update threads set
    "values" = :values::text::jsonb, status = :status, interrupts = :interrupts, error = null,
    updated_at = now(), state_updated_at = now()
where thread_id = :thread_id and active_runs = 0
returning thread_id

-- name: delete_due_threads
delete from threads where thread_id in (
    select thread_id from threads where delete_after < now() and active_runs = 0
    order by delete_after limit :limit for update skip locked
)
