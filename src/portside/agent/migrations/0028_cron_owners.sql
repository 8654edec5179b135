-- Whose a cron is: its runs are made for them, on a thread that they could run on when they made the cron (the filter of
-- the project's handler, looked at anew whenever the cron fires).
alter table crons add column owner jsonb, add column thread_access jsonb;
