-- name: append_stream_chunks
-- plain: bodies (encrypted by the event log in the context of each run)
-- Writes the events of all runs of a process since its last flush, in one statement. Heads are locked in the order of
-- their ids, as everywhere. If a run has started again elsewhere, the events of its former owner are dropped. The commit
-- does not wait for the disk: a crash of Postgres loses the last half second of events, a crash of this process none.
with settings as materialized (
    select set_config('synchronous_commit', 'off', true)
), given as (
    select g.*, row_number() over (partition by g.thread_id order by g.place) as step
    from settings, unnest(:thread_ids::uuid[], :run_ids::uuid[], :attempts::int[], :bodies::bytea[])
        with ordinality as g (thread_id, run_id, attempt, body, place)
    where not exists (select from runs r where r.run_id = g.run_id and r.attempt > g.attempt)
), heads as (
    insert into stream_heads as h (thread_id, last, added)
    select thread_id, (extract(epoch from clock_timestamp()) * 1000000)::bigint + count(*), count(*)
    from given group by thread_id order by thread_id
    on conflict (thread_id) do update
        set last = h.last + excluded.added, added = excluded.added, updated_at = now()
    returning thread_id, last, added
)
insert into stream_chunks (thread_id, number, run_id, writer, body)
select g.thread_id, h.last - h.added + g.step, g.run_id, :writer, g.body
from given g join heads h using (thread_id)
order by g.place
returning thread_id, number, run_id, body

-- name: read_stream_chunks
-- undecryptable: mark
-- Reads the next page of several threads: the chunks after the numbers that were read, up to the one that reaches the
-- limit of bytes. Lengths are known without fetching values that are stored out of line. The arrays are selected as in
-- `read_states`: the statement is planned once.
select c.thread_id, c.number, c.run_id, c.writer, c.body, c.has_more
from unnest((select :thread_ids::uuid[]), (select :cursors::bigint[])) as t (thread_id, cursor)
cross join lateral (
    select
        p.*, sum(octet_length(p.body)) over (order by p.number) - octet_length(p.body) as before,
        count(*) over () = :limit or sum(octet_length(p.body)) over () > :page_bytes as has_more
    from (
        select c.thread_id, c.number, c.run_id, c.writer, c.body from stream_chunks c
        where c.thread_id = t.thread_id and c.number > t.cursor order by c.number limit :limit
    ) p
) c
where c.before < :page_bytes
order by c.thread_id, c.number

-- name: read_run_chunks
-- Reads the next page of a run's chunks, as above.
select c.number, c.body, c.has_more
from (
    select
        p.*, sum(octet_length(p.body)) over (order by p.number) - octet_length(p.body) as before,
        count(*) over () = :limit or sum(octet_length(p.body)) over () > :page_bytes as has_more
    from (
        select number, body from stream_chunks
        where thread_id = :thread_id and run_id = :run_id and number > :cursor order by number limit :limit
    ) p
) c
where c.before < :page_bytes
order by c.number

-- name: last_stream_chunk
-- The ids of new events must be above those in here, whichever process wrote them.
select body from stream_chunks where thread_id = :thread_id order by number desc limit 1

-- name: renew_stream_process
-- Renews this process's row. Returns whether the row was missing, how many other processes are alive, and the database's
-- time, which all of them follow.
with renewed as (
    insert into stream_processes (process_id, alive_until)
    values (:process_id, now() + make_interval(secs => :alive_s))
    on conflict (process_id) do update set alive_until = excluded.alive_until
)
select
    not exists (select from stream_processes where process_id = :process_id) as was_dead,
    (select count(*) from stream_processes where process_id <> :process_id and alive_until > now()) as others,
    extract(epoch from clock_timestamp())::float8 as seconds

-- name: remove_stream_process
delete from stream_processes where process_id = :process_id

-- name: add_stream_subscriptions
-- Renews the process as well: its row may have been deleted as dead meanwhile.
with renewed as (
    insert into stream_processes (process_id, alive_until)
    values (:process_id, now() + make_interval(secs => :alive_s))
    on conflict (process_id) do update set alive_until = excluded.alive_until
    returning process_id
)
insert into stream_subscriptions (process_id, thread_id)
select r.process_id, t.thread_id from renewed r cross join unnest(:thread_ids::uuid[]) as t (thread_id)
on conflict do nothing

-- name: remove_stream_subscriptions
delete from stream_subscriptions where process_id = :process_id and thread_id = any(:thread_ids::uuid[])

-- name: followed_elsewhere
-- Of living processes only: one that crashed leaves its subscriptions until it is swept.
select distinct i.thread_id
from stream_subscriptions i join stream_processes p on p.process_id = i.process_id and p.alive_until > now()
where i.process_id <> :process_id and i.thread_id = any(:thread_ids::uuid[])

-- name: run_statuses
-- undecryptable: mark
-- Returns the whole error: an encrypted one can only be decrypted whole.
select run_id, thread_id, status, started_at is not null as was_started, error from runs where run_id = any(:run_ids::uuid[])

-- name: threads_that_exist
-- A subscription ends when its thread existed and is no longer among these.
select thread_id from threads where thread_id = any(:thread_ids::uuid[])

-- name: thread_created_at
-- In the form of event ids.
select (extract(epoch from created_at) * 1000)::bigint from threads where thread_id = :thread_id

-- name: read_stream_sequence
select event_id, seq from stream_sequences where thread_id = :thread_id

-- name: store_stream_sequences
-- In the order of threads, as every statement that locks several rows. A number never becomes smaller: another process may
-- have stored a later one.
insert into stream_sequences as s (thread_id, event_id, seq)
select t.thread_id, t.event_id, t.seq
from unnest(:thread_ids::uuid[], :event_ids::text[], :seqs::bigint[]) as t (thread_id, event_id, seq)
order by t.thread_id
on conflict (thread_id) do update set event_id = excluded.event_id, seq = excluded.seq, updated_at = now()
where s.seq < excluded.seq

-- name: delete_streams
delete from stream_chunks where thread_id = any (:thread_ids::uuid[])

-- name: delete_old_chunks
-- Chunks are kept for a while after they were written, and those of a run until a while after its end.
delete from stream_chunks where ctid in (
    select c.ctid from stream_chunks c
    where c.written_at < now() - make_interval(secs => :keep_s)
        and not exists (
            select from runs r
            where r.run_id = c.run_id
                and (r.status in ('pending', 'running') or r.updated_at > now() - make_interval(secs => :keep_s))
        )
    order by c.written_at limit :limit
)

-- name: delete_dead_processes
-- `alive_until` is never far in the future: such a row is from before the clock was set back. A living process stores its
-- row again.
delete from stream_processes where alive_until not between now() - interval '1 minute' and now() + interval '10 minutes'

-- name: delete_old_heads
-- Deleting a head is safe: numbers begin with the time in microseconds, so a new head begins above all earlier numbers.
delete from stream_heads where thread_id in (
    select h.thread_id from stream_heads h
    where h.updated_at < now() - interval '1 day'
        and not exists (select from stream_subscriptions i where i.thread_id = h.thread_id)
        and not exists (select from stream_chunks c where c.thread_id = h.thread_id)
    limit :limit for update skip locked
)

-- name: delete_old_sequences
-- A thread that is still followed keeps its sequence, or its numbers would begin again.
delete from stream_sequences where thread_id in (
    select s.thread_id from stream_sequences s
    where s.updated_at < now() - interval '1 day'
        and not exists (select from stream_subscriptions i where i.thread_id = s.thread_id)
    limit :limit for update skip locked
)

-- name: send_notification
-- plain: payload (ids of threads and runs)
select pg_notify(:channel, :payload)

-- name: bus_name
-- Part of the channel in Redis, so that several databases can share one.
select name from stream_bus
