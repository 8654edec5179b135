-- What the project's code keeps for a while, and can do without: not written ahead, so a crash of Postgres empties it.
create unlogged table cache_entries (
    key text primary key,
    -- JSON as text: it may hold what jsonb does not take.
    content text not null,
    stored_at timestamptz not null,
    expires_at timestamptz not null
);

create index cache_entries_expiry on cache_entries (expires_at);
