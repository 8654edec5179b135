-- The tables of an agent server.

-- Assistants --------------------------------------------------------------------------------------------------------

-- `last_version` is the highest version number ever given. It is on the assistant, whose row every change locks: a
-- maximum over `assistant_versions` would come from a snapshot that was taken before the lock was granted.
create table assistants (
    assistant_id uuid primary key,
    graph_id text not null,
    name text not null,
    description text,
    config jsonb not null default '{}',
    context jsonb not null default '{}',
    metadata jsonb not null default '{}',
    version int not null default 1,
    last_version int not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

create index assistants_by_creation on assistants (created_at desc, assistant_id);
create index assistants_of_graph on assistants (graph_id, created_at desc, assistant_id);
create index assistants_by_metadata on assistants using gin (metadata jsonb_path_ops);

-- Trigrams find a part of a name. The extension comes with Postgres, but an operator may have left it out or keep it
-- in a schema that is not on our search_path. Then a search by name reads all assistants: slower, with the same result.
do $$
begin
    create extension if not exists pg_trgm;
    create index assistants_by_name on assistants using gin (lower(name) gin_trgm_ops);
exception
    when undefined_file or feature_not_supported or insufficient_privilege or undefined_object then
        raise notice 'names of assistants are searched without an index: %', sqlerrm;
end $$;

-- Every change of an assistant makes a version. Any version can be made the latest again.
create table assistant_versions (
    assistant_id uuid not null references assistants on delete cascade,
    version int not null,
    graph_id text not null,
    name text not null,
    description text,
    config jsonb not null,
    context jsonb not null,
    metadata jsonb not null,
    created_at timestamptz not null default now(),
    primary key (assistant_id, version)
);

-- Threads -----------------------------------------------------------------------------------------------------------

-- The lifetime of threads that name none. Each start writes it from the configuration. It is a row and not a parameter,
-- so that every statement that inserts a thread uses the same one. A thread keeps the lifetime that it was made with.
create table thread_lifetime (
    is_only boolean primary key default true check (is_only),
    ttl_minutes double precision check (ttl_minutes > 0),
    strategy text not null default 'delete' check (strategy in ('delete', 'keep_latest'))
);
insert into thread_lifetime default values;

-- `active_runs` counts the pending and running runs. It is on the thread, whose row every admission locks: a count over
-- `runs` would come from a snapshot that was taken before the lock was granted.
-- While a run is active, `status` is 'busy'. `idle_status` is the status to return to: a run that ends without having
-- changed anything restores it.
-- `is_temporary` marks the thread of a stateless run. No search finds it, so only the index on its id contains it.
-- `pruned_for` is the `updated_at` that the history was last pruned for: until the thread changes again there is nothing
-- to prune.
-- `graph_id` and `assistant_id` repeat two fields of the metadata. Chat front ends list threads by them, and often all
-- threads have the same value: an index on a column counts them at a tenth of the cost of one on metadata.
create table threads (
    thread_id uuid primary key,
    status text not null default 'idle' check (status in ('idle', 'busy', 'interrupted', 'error')),
    idle_status text not null default 'idle' check (idle_status in ('idle', 'interrupted', 'error')),
    active_runs int not null default 0 check (active_runs >= 0),
    is_temporary boolean not null default false,
    metadata jsonb not null default '{}',
    config jsonb not null default '{}',
    "values" jsonb,
    interrupts jsonb,
    error jsonb,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    state_updated_at timestamptz not null default now(),
    ttl_minutes double precision default default_ttl_minutes() check (ttl_minutes > 0),
    ttl_strategy text not null default default_ttl_strategy() check (ttl_strategy in ('delete', 'keep_latest')),
    pruned_for timestamptz,
    delete_after timestamptz,
    graph_id text generated always as (
        case jsonb_typeof(metadata -> 'graph_id') when 'string' then metadata ->> 'graph_id' end
    ) stored,
    assistant_id text generated always as (
        case jsonb_typeof(metadata -> 'assistant_id') when 'string' then metadata ->> 'assistant_id' end
    ) stored
);

-- Large values are stored out of line, so that the rows that searches read stay small.
alter table threads alter column metadata set storage main;
alter table threads set (toast_tuple_target = 512);

-- One index for each order of a search; the opposite order reads it backwards.
create index threads_by_update on threads (updated_at desc, thread_id) where not is_temporary;
create index threads_by_creation on threads (created_at desc, thread_id) where not is_temporary;
create index threads_by_state_update on threads (state_updated_at desc, thread_id) where not is_temporary;
-- The status alone: an index stores equal entries once, so a count of 97,000 threads takes 6 ms of CPU instead of the
-- 12 ms of (status, updated_at), and each write of a thread makes a smaller entry.
create index threads_by_status on threads (status) where not is_temporary;
create index threads_by_graph on threads (graph_id) where not is_temporary;
create index threads_by_assistant on threads (assistant_id) where not is_temporary;
create index threads_by_metadata on threads using gin (metadata jsonb_path_ops) where not is_temporary;

-- Searches by the top-level fields of metadata and values (docs/why/thread-search.md). A short list of pending entries,
-- because searches have to read all of it.
-- The planner considers an index wherever its condition holds, and takes the test of a row's fields to cost the same in
-- any index. It would count by reading the whole index of statuses and computing the fields of every thread. So the
-- condition of these two indexes is phrased differently, and a count uses that phrase.
create index threads_by_metadata_fields on threads using gin (indexed_fields(metadata))
with (gin_pending_list_limit = 256) where is_temporary is not true;
create index threads_by_values_fields on threads using gin (indexed_fields("values"))
with (gin_pending_list_limit = 256) where is_temporary is not true;
-- Postgres ignores the statistics of a partial index, so it would not know which fields many threads have in common.
create statistics threads_metadata_fields on (indexed_fields(metadata)) from threads;
create statistics threads_values_fields on (indexed_fields("values")) from threads;

create index threads_to_delete on threads (delete_after) where delete_after is not null;
create index threads_to_expire on threads (thread_expiry(updated_at, ttl_minutes))
where ttl_minutes is not null and pruned_for is distinct from updated_at;

create trigger threads_delete_checkpoints after delete on threads
    for each row execute function delete_thread_checkpoints();

-- Runs --------------------------------------------------------------------------------------------------------------

-- A run is `pending` (and blocked behind an earlier run of its thread, or ready), `running` under a lease, or over.
--
-- `number` orders the runs of a thread: it is drawn under the thread's lock.
-- `queue_position` orders the claims: the moment at which the run was ready to execute, moved by its priority and by the
-- other runs that its caller has pending. It is never recomputed, so claims read an index in order and no run starves.
-- `is_delayed` keeps a run that is not due yet out of that index, so that runs for tomorrow cost today's claims nothing.
-- `attempt` is the fencing token of the worker: it only grows, also when a worker hands a run back. `lost_attempts`
-- counts the workers that were lost while they executed the run.
-- `started_at` distinguishes a run that may have left checkpoints from one that never began.
-- `cancel_action` is the request to stop a run that has begun. Its worker reads it when it renews the lease, stops the
-- graph, and then ends the run: only the graph knows the state that the thread is left in.
-- `request_key` is the client's Idempotency-Key. It is unique among the runs of a thread, or among the runs that were
-- made without a thread (`key_scope` is then the nil id). `key_index` is the index in a batch, and `request_digest`
-- identifies the content of the request.
-- `caller` is a short name of a user or an address, for the limit on pending runs; null where no limit applies.
-- `webhook` repeats a field of `kwargs`, which may be large and stored out of line when the run ends.
create table runs (
    run_id uuid primary key,
    number bigint generated always as identity,
    thread_id uuid not null references threads on delete cascade,
    assistant_id uuid not null,
    status text not null check (status in ('pending', 'running', 'success', 'error', 'timeout', 'interrupted')),
    is_temporary boolean not null default false,
    metadata jsonb not null default '{}',
    kwargs jsonb not null default '{}',
    multitask_strategy text not null,
    webhook text,
    error jsonb,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    started_at timestamptz,
    -- The queue.
    caller text,
    priority smallint not null default 0,
    queue_position timestamptz not null default now(),
    run_after timestamptz not null default now(),
    is_blocked boolean not null default false,
    is_delayed boolean not null default false,
    -- The lease.
    admitted_by uuid,
    is_streamed boolean not null default false,
    worker_id uuid,
    leased_until timestamptz,
    attempt int not null default 0,
    lost_attempts int not null default 0,
    cancel_action text check (cancel_action in ('interrupt', 'rollback')),
    cancel_reason text,
    -- The idempotency key.
    key_scope uuid,
    request_key text,
    key_index int,
    request_digest text
);

create index runs_of_thread on runs (thread_id, number desc);
-- The next run of a thread and the runs to cancel, without reading all the runs that are over.
create index runs_active on runs (thread_id, number) where status in ('pending', 'running');
-- A safeguard for "one run of a thread at a time": even a mistake in the code cannot start two.
create unique index runs_one_running on runs (thread_id) where status = 'running';

create index runs_ready on runs (queue_position, number) where status = 'pending' and not is_blocked and not is_delayed;
create index runs_delayed on runs (run_after) where status = 'pending' and is_delayed;
create index runs_pending_of_caller on runs (caller, is_delayed, priority, queue_position)
where status = 'pending' and caller is not null;
create index runs_leased on runs (leased_until) where status = 'running';

create unique index runs_by_key on runs (key_scope, request_key, key_index) where request_key is not null;
create index runs_with_keys on runs (created_at) where request_key is not null;

-- The tasks of the A2A protocol are runs that carry the id of their task's first run.
create index runs_of_a2a_tasks on runs (assistant_id, thread_id, (metadata ->> 'a2a.task_start_id'), number desc)
    where metadata ? 'a2a.task_start_id';

create trigger runs_set_webhook before insert on runs
    for each row when (new.kwargs ->> 'webhook' is not null) execute function set_run_webhook();

-- Deferred to the commit: only then does the thread have the values that the run left.
create constraint trigger runs_enqueue_webhook after update of status on runs deferrable initially deferred
    for each row when (
        new.webhook is not null
        and old.status in ('pending', 'running') and new.status in ('success', 'error', 'timeout', 'interrupted')
    ) execute function enqueue_webhook();

-- The webhook calls to make: one row for each run, and in `log` each attempt. The transaction that ends a run inserts the
-- row, so that no crash loses the call. The run may be deleted before the call is made: the row holds the content of the
-- call, as it is stored, until the call has succeeded or failed for good.
create table webhook_deliveries (
    run_id uuid primary key,
    thread_id uuid not null,
    url text not null,
    host text not null generated always as (coalesce(substring(lower(url) from '^[a-z]+://([^/?#]*)'), '')) stored,
    status text not null default 'pending' check (status in ('pending', 'delivered', 'failed')),
    attempts int not null default 0,
    due_at timestamptz not null default now(),
    log jsonb not null default '[]',
    run jsonb,
    "values" jsonb,
    run_created_at timestamptz not null,
    run_started_at timestamptz,
    run_ended_at timestamptz not null,
    updated_at timestamptz not null default now()
);

create index webhook_deliveries_due on webhook_deliveries (due_at) where status = 'pending';
create index webhook_deliveries_over on webhook_deliveries (updated_at) where status <> 'pending';

-- Crons -------------------------------------------------------------------------------------------------------------

-- `end_time` is returned as the client sent it, `ends_at` is the parsed one. `next_run_date` is null once no firing is
-- left. `claimed_until` only keeps processes from working on the same firing: an instant fires once because the
-- transaction that admits the run also moves `next_run_date`.
-- `owner` is the user that the runs are made for, and `thread_access` the access filter of the thread that the cron was
-- made with; each firing checks it again. `last_run_id` prevents a second run while the last one is pending;
-- `skipped_count` counts the firings that were skipped for that.
create table crons (
    cron_id uuid primary key,
    assistant_id uuid not null references assistants on delete cascade,
    thread_id uuid references threads on delete cascade,
    user_id text not null default '',
    owner jsonb,
    thread_access jsonb,
    schedule text not null,
    timezone text,
    end_time text,
    ends_at timestamptz,
    payload jsonb not null,
    metadata jsonb not null default '{}',
    on_run_completed text check (on_run_completed in ('delete', 'keep')),
    is_enabled boolean not null default true,
    next_run_date timestamptz,
    claimed_until timestamptz,
    last_run_id uuid,
    skipped_count bigint not null default 0,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

create index crons_due on crons (next_run_date) where is_enabled;
create index crons_by_creation on crons (created_at desc, cron_id desc);
create index crons_of_assistant on crons (assistant_id);
create index crons_of_thread on crons (thread_id) where thread_id is not null;
create index crons_by_metadata on crons using gin (metadata jsonb_path_ops);

-- Checkpoints -------------------------------------------------------------------------------------------------------

-- The state of graphs. A checkpoint names the version of each channel that it contains; a value is stored once for each
-- version, so a step writes only the channels that it changed. Small plain values (numbers, short strings, null) are in
-- the checkpoint's body instead, which saves a row for each routing channel of each step.
--
-- No foreign keys: pending writes reach the database before the checkpoint that they belong to.
-- Keys compare byte by byte ("C"): langgraph sorts checkpoints and writes in that order.
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

-- `idx` is the index of a write within its task; special writes (error, interrupt, resume, …) have negative ones.
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

-- The store ---------------------------------------------------------------------------------------------------------

-- The long-term memory of agents. Labels and keys compare byte by byte ("C"): then all items under a prefix are one range
-- of the primary key, from the prefix itself to its last label followed by the lowest character.
-- `ttl_minutes` is how long an item lives after it was written or read. Expired items are invisible at once and deleted
-- later. `index_fields` are the fields that the writer wants embedded: null for the configured ones, empty for none.
-- `indexed_by` is the generation of the search index that contains this revision of the item.
create table store_items (
    id bigint generated always as identity unique,
    namespace text[] collate "C" not null check (cardinality(namespace) > 0),
    key text collate "C" not null,
    value jsonb not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    ttl_minutes double precision,
    expires_at timestamptz,
    revision bigint not null default 1,
    index_fields jsonb,
    indexed_by int,
    primary key (namespace, key) include (expires_at)
);
create index store_items_by_update on store_items (updated_at desc, id desc);
create index store_items_to_delete on store_items (expires_at) where expires_at is not null;
create index store_items_to_index on store_items ((coalesce(indexed_by, 0)), id);

-- A generation of the search index: one model with its dimensions and fields. A changed configuration begins a new one,
-- and every item is embedded again for it. The vectors are in `store_vectors`, which `make_store_vectors` creates.
create table store_indexes (
    generation int primary key,
    embed text not null,
    dims int not null,
    fields text[] not null
);

-- Event streams -----------------------------------------------------------------------------------------------------

-- Events on their way between processes. These rows are authoritative; notifications only say that there are new ones.

-- The processes that serve this database. One that does not renew its row is dead, and its subscriptions end with it.
create table stream_processes (
    process_id uuid primary key,
    alive_until timestamptz not null
);

-- Which process follows which thread. The worker that executes a run of such a thread writes the run's events here.
create table stream_subscriptions (
    thread_id uuid not null,
    process_id uuid not null references stream_processes on delete cascade,
    primary key (thread_id, process_id)
);
create index stream_subscriptions_of_process on stream_subscriptions (process_id);

-- The number of a thread's last chunk. A writer locks the row, so chunks are committed in the order of their numbers: a
-- reader that has seen one has seen all before it. `added` is the number of chunks that the last write added.
create table stream_heads (
    thread_id uuid primary key,
    last bigint not null,
    added int not null,
    updated_at timestamptz not null default now()
);

-- A chunk holds the events of one run from one flush: a row for each event would cost ten times as much.
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
-- Chunks live for minutes: compressing them costs more than it saves.
alter table stream_chunks alter column body set storage external;

-- How far the event sequence of a thread was numbered, for the process that continues it.
create table stream_sequences (
    thread_id uuid primary key,
    event_id text not null,
    seq bigint not null,
    updated_at timestamptz not null default now()
);

-- The name by which an external message bus knows this database.
create table stream_bus (name uuid not null);
insert into stream_bus values (gen_random_uuid());

-- Other -------------------------------------------------------------------------------------------------------------

-- The cache of the project's code, which must tolerate losing it: unlogged, so a crash of Postgres empties it.
create unlogged table cache_entries (
    key text primary key,
    -- JSON as text: it may contain what jsonb refuses.
    content text not null,
    stored_at timestamptz not null,
    expires_at timestamptz not null
);

create index cache_entries_expiry on cache_entries (expires_at);

-- An encrypted value is bound to the row that it is stored in. Only a database that was in use before that was so may
-- contain envelopes that are not bound. In any other database, a value that looks like an unbound envelope is data that a
-- client sent before encryption was turned on.
create table encryption (may_contain_unbound boolean not null);
insert into encryption values (false);
