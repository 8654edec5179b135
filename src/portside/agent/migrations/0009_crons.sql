-- Crons. `end_time` is shown as it was sent, `ends_at` is what counts. `next_run_date` is null once nothing is to come.
-- `claimed_until` only keeps processes from working on the same firing; that an instant fires once is decided by the
-- move of `next_run_date`, in the transaction that admits the run.
create table crons (
    cron_id uuid primary key,
    assistant_id uuid not null references assistants on delete cascade,
    thread_id uuid references threads on delete cascade,
    user_id text not null default '',
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
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

create index crons_due on crons (next_run_date) where is_enabled;
create index crons_by_creation on crons (created_at desc, cron_id desc);
create index crons_of_assistant on crons (assistant_id);
create index crons_of_thread on crons (thread_id) where thread_id is not null;
create index crons_by_metadata on crons using gin (metadata jsonb_path_ops);
