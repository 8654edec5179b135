-- The run that a cron made last, so that no second one is made while that still waits, and at how many of its instants
-- no run was made.
alter table crons add column last_run_id uuid, add column skipped_count bigint not null default 0;
