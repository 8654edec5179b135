-- A budget that is being spent: whose, how much of it, and when it is whole again. Unlogged, as a crash that forgets what
-- was spent does no harm, and a request must not wait for a disk.
create unlogged table rate_windows (
    budget bytea primary key,
    ends_at timestamptz not null,
    used int not null
);

create index rate_windows_ended on rate_windows (ends_at);
