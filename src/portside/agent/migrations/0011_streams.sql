-- Events on their way between processes. What is written here is the truth; whatever is said beside it is a hint.

-- The processes that serve this database. One that does not renew its row is dead, and with it go its interests.
create table stream_processes (
    process_id uuid primary key,
    alive_until timestamptz not null
);

-- Which process follows which thread. Whoever executes a run of such a thread writes its events down.
create table stream_interests (
    thread_id uuid not null,
    process_id uuid not null references stream_processes on delete cascade,
    primary key (thread_id, process_id)
);
create index stream_interests_of_process on stream_interests (process_id);

-- The number of a thread's last chunk. Its row is locked by whoever writes, so that chunks are committed in the order
-- of their numbers and a reader that has seen one has seen all before it. `added` is what the last write added.
create table stream_heads (
    thread_id uuid primary key,
    last bigint not null,
    added int not null,
    touched_at timestamptz not null default now()
);

-- A chunk holds the events of one run that one flush found: a row for each event would cost ten times as much.
create table stream_chunks (
    thread_id uuid not null,
    number bigint not null,
    run_id uuid,
    writer uuid not null,
    body bytea not null,
    written_at timestamptz not null default now(),
    primary key (thread_id, number)
);
create index stream_chunks_by_age on stream_chunks (written_at);
-- They live for minutes: packing them costs more than it saves.
alter table stream_chunks alter column body set storage external;

-- How far the numbered sequence of a thread was told, for the process that tells it next.
create table stream_sequences (
    thread_id uuid primary key,
    event_id text not null,
    seq bigint not null,
    touched_at timestamptz not null default now()
);

-- The name by which a bus beside Postgres knows this database.
create table stream_bus (name uuid not null);
insert into stream_bus values (gen_random_uuid());
