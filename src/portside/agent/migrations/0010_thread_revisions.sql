-- Older versions run: they do not know the table.
-- The revision of the deployment that began what a thread still has to finish (docs/why/executors.md). There are rows only
-- in deployments with `pin_threads`. A row counts while its thread is busy or interrupted; rows of other threads are
-- deleted after a while. `run_id` is the run that was begun last: another attempt at it stays with the revision.
-- There is no foreign key, because each thread that is deleted anywhere would pay for it.
create table thread_revisions (
    thread_id uuid primary key,
    revision_id uuid not null,
    run_id uuid not null
);
