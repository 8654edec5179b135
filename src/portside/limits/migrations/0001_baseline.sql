-- The use of a rate limit in its current window: the key of the budget, the amount used, and when the window ends.
-- Unlogged: a crash that loses the counts does no harm, and a request must not wait for a disk.
create unlogged table rate_windows (
    budget bytea primary key,
    ends_at timestamptz not null,
    used int not null
);

create index rate_windows_ended on rate_windows (ends_at);
