-- Older versions run: they do not know the column, which has a default.
-- After how many seconds without a request and a run a deployment sleeps; 0 for never.
alter table deployments
    add column sleep_after_s int not null default 0 check (sleep_after_s between 0 and 2592000);
