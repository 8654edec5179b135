create table assistants (
    assistant_id uuid primary key,
    graph_id text not null,
    name text not null,
    description text,
    config jsonb not null default '{}',
    context jsonb not null default '{}',
    metadata jsonb not null default '{}',
    version int not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

-- `active_runs` counts the pending and running runs. It lives on the thread, whose row every admission locks, because
-- a count over `runs` would be read from a snapshot taken before that lock was granted.
create table threads (
    thread_id uuid primary key,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    state_updated_at timestamptz not null default now(),
    metadata jsonb not null default '{}',
    config jsonb not null default '{}',
    status text not null default 'idle' check (status in ('idle', 'busy', 'interrupted', 'error')),
    "values" jsonb,
    interrupts jsonb,
    error jsonb,
    active_runs int not null default 0 check (active_runs >= 0),
    delete_after timestamptz
);

create index threads_by_update on threads (updated_at desc, thread_id);
create index threads_to_delete on threads (delete_after) where delete_after is not null;
create index threads_by_metadata on threads using gin (metadata jsonb_path_ops);

-- A run is `pending` (and blocked behind an earlier run of its thread, or ready), `running` under a lease, or over.
-- `number` orders the runs of a thread: it is drawn under the thread's lock.
create table runs (
    run_id uuid primary key,
    number bigint generated always as identity,
    thread_id uuid not null references threads on delete cascade,
    assistant_id uuid not null,
    status text not null check (status in ('pending', 'running', 'success', 'error', 'timeout', 'interrupted')),
    is_blocked boolean not null default false,
    is_temporary boolean not null default false,
    metadata jsonb not null default '{}',
    kwargs jsonb not null default '{}',
    multitask_strategy text not null,
    attempt int not null default 0,
    admitted_by uuid,
    worker_id uuid,
    leased_until timestamptz,
    run_after timestamptz not null default now(),
    error jsonb,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

create index runs_of_thread on runs (thread_id, number desc);
create index runs_ready on runs (number) where status = 'pending' and not is_blocked;
create index runs_leased on runs (leased_until) where status = 'running';
-- The backstop of "one at a time": even a mistake in the code cannot make two runs of a thread run at once.
create unique index runs_one_running on runs (thread_id) where status = 'running';
